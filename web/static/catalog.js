// The pages work without this script. It adds keys: "/" moves to the search box, Ctrl+Enter sends a prompt, Escape closes the menu, arrows move between the organs of a
// drawing and show their labels. It adds buttons that copy commands, and updates running jobs without reloading the page.
"use strict";

document.documentElement.classList.add("scripted"); // shows which keys there are

// Ctrl+Enter sends a prompt, as in other fields of several lines.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !event.target.matches("form.asks textarea")) return;
  event.preventDefault();
  event.target.form.requestSubmit();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const typing = event.target.matches("input, textarea, select, [contenteditable]");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    const box = [...document.querySelectorAll("#find, #q")].find((input) => input.offsetParent);
    if (box) {
      box.focus();
      box.select();
    } else {
      window.location.assign(document.querySelector(".find-link").href);
    }
    return;
  }
  const link = event.target.closest(".network a");
  if (link) walk(link, event);
});

// Move the focus to the nearest link in the direction of an arrow key.
function walk(link, event) {
  const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!direction) return;
  event.preventDefault();
  const from = middle(link);
  let best = null;
  let least = Infinity;
  for (const other of link.closest(".network").querySelectorAll("a")) {
    const [right, down] = middle(other).map((place, axis) => place - from[axis]);
    const along = right * direction[0] + down * direction[1];
    const aside = Math.abs(right * direction[1] + down * direction[0]);
    const distance = along + 4 * aside;
    if (along > 1 && aside <= along + 2 && distance < least) [best, least] = [other, distance];
  }
  if (!best) return;
  best.focus();
  best.scrollIntoView({ block: "nearest", inline: "nearest" }); // focus() leaves an organ at the edge of its frame hidden
}

function middle(link) {
  const box = link.getBoundingClientRect();
  return [box.left + box.width / 2, box.top + box.height / 2];
}

// A drawing of a network is one stop for the Tab key: the organ that had the focus last. It shows the label of the organ
// that is pointed at or focused.
function addPointers() {
  for (const figure of document.querySelectorAll(".network")) {
    const links = [...figure.querySelectorAll("svg a")];
    let stop = links[0];
    if (!stop) continue;
    links.slice(1).forEach((link) => link.setAttribute("tabindex", "-1"));
    const show = (event) => {
      const link = event.target.closest("svg a");
      if (!link) return;
      figure.querySelector(".pointed").textContent = link.querySelector("title").textContent;
      if (event.type !== "focusin") return;
      stop.setAttribute("tabindex", "-1");
      stop = link;
      stop.removeAttribute("tabindex");
    };
    figure.addEventListener("pointerover", show);
    figure.addEventListener("focusin", show);
  }
}
addPointers();
document.addEventListener("mainreplaced", addPointers);

// The menu closes with Escape, on a click elsewhere, and when the focus leaves it.
const menu = document.querySelector(".menu");
if (menu) {
  document.addEventListener("click", (event) => {
    if (!menu.contains(event.target)) menu.open = false;
  });
  menu.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !menu.contains(event.relatedTarget)) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}

// Add a button to each command and recipe. Browsers allow this only over HTTPS and on the machine of the server.
function addCopyButtons() {
  if (!navigator.clipboard) return;
  for (const text of document.querySelectorAll("main pre:not(.copyable > pre)")) {
    const frame = document.createElement("div");
    frame.className = "copyable";
    text.replaceWith(frame);
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain";
    const content = text.textContent.trim();
    const say = (word, label = word) => {
      button.textContent = word;
      button.setAttribute("aria-label", label);
    };
    const reset = () => say("Copy", `Copy: ${content.slice(0, 40)}`);
    reset();
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(content).then(() => say("Copied"), () => say("Not allowed"));
      window.setTimeout(reset, 2000);
    });
    frame.append(text, button);
  }
}
addCopyButtons();
document.addEventListener("mainreplaced", addCopyButtons);

const FOLLOW_MS = 1000;
for (const address of new Set([...document.querySelectorAll("[data-follow]")].map((place) => place.dataset.follow))) {
  window.setTimeout(follow, FOLLOW_MS, address);
}

// Update running jobs from the JSON at `address`, in all places that show them. Reload the page when the state of a job has changed.
async function follow(address) {
  try {
    if (!document.hidden) {
      const answer = await fetch(address, { cache: "no-store" });
      if (answer.status === 404) return;
      const jobs = answer.ok ? await answer.json().then((values) => values.items ?? [values]) : null;
      if (jobs && (jobs.length !== jobsAt(address) || !jobs.every(shows))) {
        window.location.reload();
        return;
      }
    }
  } catch {
    // the server is not reachable; try again later
  }
  window.setTimeout(follow, FOLLOW_MS, address);
}

// The number of different jobs in the places that are followed at `address`.
function jobsAt(address) {
  const places = [...document.querySelectorAll("[data-follow]")].filter((place) => place.dataset.follow === address);
  const inside = places.flatMap((place) => [...(place.dataset.job ? [place] : place.querySelectorAll("[data-job]"))]);
  return new Set(inside.map((place) => place.dataset.job)).size;
}

function shows(job) {
  const places = [...document.querySelectorAll(`[data-job="${Number(job.id)}"]`)];
  return places.length > 0 && places.every((place) => showsIn(place, job));
}

function showsIn(place, job) {
  if (place.dataset.state !== job.state) return false;
  const bar = place.querySelector("progress");
  if (bar) bar.value = job.progress;
  const percent = place.querySelector("[data-percent]");
  if (percent) percent.textContent = `${Math.floor(100 * job.progress)}%`;
  const note = place.querySelector("[data-note]");
  if (note && note.textContent !== job.note) note.textContent = job.note;
  return true;
}

if (window.location.hash === "#q") document.getElementById("q")?.focus();
