// Show an answer while it is written, from the JSON of its page. Each request is short: no connection stays open.
// Without this script, the page is loaded again every few seconds.
"use strict";

const WRITING_MS = 500;
const WAITING_MS = 1500;
const FAILED_MS = 4000;
const shown = document.querySelector("[data-answer]");
if (shown) window.setTimeout(read, WRITING_MS);

async function read() {
  let pause = FAILED_MS;
  try {
    const response = await fetch(shown.dataset.answer, { cache: "no-store" });
    if (response.status === 404) {
      window.location.reload();
      return;
    }
    if (response.ok) {
      const answer = await response.json();
      show(answer);
      if (answer.state !== "queued" && answer.state !== "running") {
        window.location.reload(); // the complete page, with why each answer ended
        return;
      }
      pause = answer.state === "queued" || document.hidden ? WAITING_MS : WRITING_MS;
    }
  } catch {
    // the server is not reachable; try again later
  }
  window.setTimeout(read, pause);
}

function show(answer) {
  const places = shown.querySelectorAll("[data-reply]");
  answer.replies.forEach((reply, number) => {
    const place = places[number];
    if (!place) return;
    const text = place.querySelector("[data-text]");
    if (text.textContent !== reply.text) text.textContent = reply.text;
    place.querySelector("[data-tokens]").textContent = reply.tokens.toLocaleString("en");
  });
  const status = document.querySelector("[data-status]");
  let words = answer.replies.some((reply) => reply.tokens) ? "Writing." : "Loading the model.";
  if (answer.state === "queued") words = `Waiting: place ${answer.position ?? 1} in the queue.`;
  if (status.textContent !== words) status.textContent = words;
}
