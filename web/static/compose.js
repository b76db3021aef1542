// Composing works without this script: each link and form has an address. The script replaces the main part of the page
// instead of reloading it, keeps the focus, and announces changes to screen readers.
"use strict";

const status = document.body.appendChild(document.createElement("p"));
status.setAttribute("role", "status");
status.className = "unseen";

document.addEventListener("click", (event) => {
  const link = event.target.closest("main a[href]");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  if (event.defaultPrevented || !isOurs(link.href) || isWithin(link.href)) return;
  event.preventDefault();
  show(link.href, keyOf(link));
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  const address = new URL(form.action);
  if (form.method !== "get" || event.defaultPrevented || !address.pathname.startsWith(window.location.pathname)) return;
  event.preventDefault();
  address.search = new URLSearchParams(new FormData(form));
  show(address.href, form.querySelector("[id]")?.id);
});

// Back and forward change the address immediately, but the page only after loading. Until then the page is inert:
// otherwise a form would send the steps of the previous page.
window.addEventListener("popstate", () => {
  const main = document.querySelector("main");
  if (shown !== pageOf(window.location)) {
    main.inert = true;
    show(window.location.href, null, false);
  } else {
    requests += 1; // ignore the answer to an earlier request
    main.inert = false;
    main.removeAttribute("aria-busy");
  }
});

let shown = pageOf(window.location);
let requests = 0;

async function show(href, key, isNew = true) {
  const number = ++requests;
  document.querySelector("main").setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(href, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = page.querySelector("main");
    if (number !== requests) return; // a newer request exists
    if (!main) throw new Error("no page");
    const address = new URL(answer.url);
    address.hash = address.hash || new URL(href).hash;
    if (isNew) window.history.pushState(null, "", address);
    shown = pageOf(address);
    const open = new Set([...document.querySelectorAll("main details[open]")].map(keyOf));
    document.querySelector("main").replaceWith(main);
    document.querySelector(".foot").replaceWith(page.querySelector(".foot"));
    document.title = page.title;
    document.dispatchEvent(new Event("mainreplaced")); // catalog.js adds its buttons again
    focusOn(key, address.hash, open);
  } catch {
    if (number !== requests) return;
    if (isNew) window.location.assign(href);
    else window.location.reload(); // the address has changed already
  }
}

function focusOn(key, hash, open) {
  for (const element of document.querySelectorAll("main details[data-key]")) element.open ||= open.has(keyOf(element));
  const target = hash && document.getElementById(hash.slice(1));
  const last = key && [...document.querySelectorAll("main [id], main [data-key]")].find((element) => keyOf(element) === key);
  const place = last || target;
  if (place) place.focus({ preventScroll: true });
  if (target && target.id === "candidates") target.scrollIntoView({ block: "nearest" });
  const count = document.querySelectorAll("main ol.steps li").length;
  const findings = document.querySelectorAll("main .findings .refuse, main .findings .warn").length;
  status.textContent = `Steps: ${count}. Refusals and warnings: ${findings}.`;
}

function keyOf(element) {
  return element.dataset.key || element.id;
}

function isOurs(href) {
  const address = new URL(href);
  return address.origin === window.location.origin && address.pathname === window.location.pathname;
}

function isWithin(href) {
  return new URL(href).hash !== "" && pageOf(new URL(href)) === shown;
}

function pageOf(address) {
  return address.pathname + address.search;
}
