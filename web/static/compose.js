// Composing works without this script: each link and form has an address. The script replaces the main part of the page
// instead of reloading it, keeps the focus, and announces changes to screen readers.
"use strict";

const status = document.body.appendChild(document.createElement("p"));
status.setAttribute("role", "status");
status.className = "unseen";

// The first and the last part of a band: with Shift, a click gives all blocks between the last click and this one.
let firstOfBand = null;

document.addEventListener("click", (event) => {
  const part = event.target.closest(".cells a[data-block]");
  if (part && event.shiftKey && giveBand(part)) {
    event.preventDefault();
    return;
  }
  firstOfBand = part ? { type: part.dataset.type, block: part.dataset.block } : null;
  const link = event.target.closest("main a[href]");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const address = new URL(link.getAttribute("href"), window.location).href; // `href` of a link in a drawing is no text
  if (event.defaultPrevented || !isOurs(address) || isWithin(address)) return;
  event.preventDefault();
  show(address, keyOf(link));
});

function giveBand(part) {
  const form = document.getElementById("band");
  const { type, block } = part.dataset;
  if (!form || !firstOfBand || block === "" || firstOfBand.block === "" || firstOfBand.type !== type) return false;
  const [low, high] = [Number(firstOfBand.block), Number(block)].sort((first, second) => first - second);
  form.elements.blocks.value = `${low}-${high}`;
  form.elements.type.value = type;
  form.requestSubmit();
  return true;
}

// A slider sends its form when it is let go; its button is only for pages without this script.
document.addEventListener("input", (event) => {
  const output = event.target.form?.querySelector(`output[for="${CSS.escape(event.target.id)}"]`);
  if (output) output.value = event.target.value;
});
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-sends]")) event.target.form.requestSubmit();
});
document.documentElement.classList.add("composes");

document.addEventListener("submit", (event) => {
  const form = event.target;
  const address = new URL(form.action);
  if (form.method !== "get" || event.defaultPrevented || !address.pathname.startsWith(window.location.pathname)) return;
  event.preventDefault();
  address.search = new URLSearchParams(new FormData(form));
  show(address.href, (event.submitter?.dataset.key && keyOf(event.submitter)) || form.querySelector("[id]")?.id);
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

const COLUMNS = ".choose, .result";
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
    const scrolled = [...document.querySelectorAll(COLUMNS)].map((column) => column.scrollTop);
    const open = new Set([...document.querySelectorAll("main details[open]")].map(keyOf));
    document.querySelector("main").replaceWith(main);
    document.querySelector(".foot").replaceWith(page.querySelector(".foot"));
    document.title = page.title;
    document.dispatchEvent(new Event("mainreplaced")); // catalog.js adds its buttons again
    document.querySelectorAll(COLUMNS).forEach((column, place) => (column.scrollTop = scrolled[place] ?? 0));
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
  if (target && !last) target.scrollIntoView({ block: "nearest" });
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
