// The catalog reads well without this. It adds keys: "/" goes to the search box, arrows walk the anatomy grid.
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
      link.focus({ preventScroll: true }); // its own scrolling leaves edges behind the heads
      link.scrollIntoView({ block: "nearest", inline: "nearest" });
      return;
    }
  }
}

if (window.location.hash === "#q") document.getElementById("q")?.focus();
