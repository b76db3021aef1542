// The pages work without this script. It adds keys: "/" moves to the search box, arrows move in the anatomy grid. It also
// updates running jobs without reloading the page.
"use strict";

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const typing = event.target.matches("input, textarea, select, [contenteditable]");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    const box = document.getElementById("q");
    if (box) {
      box.focus();
      box.select();
    } else {
      window.location.assign(`${document.querySelector("nav a").pathname}#q`);
    }
    return;
  }
  const cell = event.target.closest(".grid td");
  if (cell) walk(cell, event);
});

function walk(cell, event) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const step = steps[event.key];
  if (!step) return;
  event.preventDefault();
  const rows = cell.closest("tbody").rows;
  let row = cell.parentElement.sectionRowIndex;
  let column = cell.cellIndex;
  for (;;) {
    row += step[0];
    column += step[1];
    const next = rows[row]?.cells[column];
    if (!next || column < 1) return;
    const link = next.querySelector("a");
    if (link) {
      link.focus({ preventScroll: true }); // the default scrolling can hide the cell behind the headings
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
      return;
    }
  }
}

const FOLLOW_MS = 1000;
const followed = document.querySelector("[data-follow]");
if (followed) window.setTimeout(follow, FOLLOW_MS);

// Update running jobs from the JSON of the page. Reload the page when the state of a job has changed.
async function follow() {
  try {
    if (!document.hidden) {
      const answer = await fetch(followed.dataset.follow, { cache: "no-store" });
      if (answer.status === 404) return;
      const jobs = answer.ok ? await answer.json().then((values) => values.items ?? [values]) : null;
      if (jobs && (jobs.length !== document.querySelectorAll("[data-job]").length || !jobs.every(shows))) {
        window.location.reload();
        return;
      }
    }
  } catch {
    // the server is not reachable; try again later
  }
  window.setTimeout(follow, FOLLOW_MS);
}

function shows(job) {
  const place = document.querySelector(`[data-job="${Number(job.id)}"]`);
  if (!place || place.dataset.state !== job.state) return false;
  const bar = place.querySelector("progress");
  if (bar) bar.value = job.progress;
  const percent = place.querySelector("[data-percent]");
  if (percent) percent.textContent = `${Math.floor(100 * job.progress)}%`;
  const note = place.querySelector("[data-note]");
  if (note && note.textContent !== job.note) note.textContent = job.note;
  return true;
}

if (window.location.hash === "#q") document.getElementById("q")?.focus();
