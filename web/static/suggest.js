// Suggestions below an input with `data-suggest`, as a combobox with a list. The value says what is typed: "names" for
// the name of a model, "models" or "organs" for a query, "all" for a search that leads to a page. Without this script,
// these are plain inputs. Saved queries are links on the page with `data-saved`, so that the API needs no session.
"use strict";

(() => {
  const ADDRESS = document.currentScript.dataset.address;
  const WAIT_MS = 120;
  const KEPT_MAX = 100;
  const kept = new Map(); // the answers by address, without the oldest
  const lists = new WeakMap(); // the list of each input
  let number = 0;

  function set_up(root) {
    root.querySelectorAll("input[data-suggest]").forEach(combobox);
  }

  function combobox(input) {
    if (lists.has(input)) return lists.get(input);
    const list = document.createElement("ul");
    list.className = "suggestions";
    list.id = `suggestions-${(number += 1)}`;
    list.hidden = true;
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Suggestions");
    input.after(list);
    const attributes = { role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id };
    for (const [name, value] of Object.entries(attributes)) input.setAttribute(name, value);
    const box = { input, list, items: [], chosen: -1, asked: 0, timer: 0 };
    lists.set(input, box);
    input.addEventListener("input", () => ask(box));
    input.addEventListener("keydown", (event) => press(box, event));
    input.addEventListener("blur", () => close(box));
    list.addEventListener("mousedown", (event) => event.preventDefault()); // the input keeps the focus
    list.addEventListener("click", (event) => {
      const option = event.target.closest("[role=option]");
      if (option) take(box, box.items[[...list.children].indexOf(option)]);
    });
    return box;
  }

  // The text that is completed: the word at the cursor of a query, or everything. A space in quotation marks ends no word.
  function typed(box) {
    const { input } = box;
    if (!is_query(box)) return { from: 0, text: input.value };
    const before = input.value.slice(0, input.selectionStart ?? input.value.length);
    let from = 0;
    let quoted = false;
    for (let place = 0; place < before.length; place += 1) {
      if (before[place] === '"') quoted = !quoted;
      if (/\s/.test(before[place]) && !quoted) from = place + 1;
    }
    return { from, text: before.slice(from) };
  }

  function is_query(box) {
    return box.input.dataset.suggest === "models" || box.input.dataset.suggest === "organs";
  }

  // Ask for suggestions when the typing pauses. `wants_all` also asks for an empty text.
  function ask(box, wants_all = false) {
    window.clearTimeout(box.timer);
    const round = (box.asked += 1); // older answers are ignored
    const { text } = typed(box);
    if (!text.trim() && !wants_all) {
      close(box);
      return;
    }
    box.timer = window.setTimeout(async () => {
      const found = [...saved(box, text), ...(await answer(box.input.dataset.suggest, text.trim()))];
      if (round === box.asked && document.activeElement === box.input) show(box, found.filter((item) => item.text !== text));
    }, wants_all ? 0 : WAIT_MS);
  }

  async function answer(of, text) {
    const address = `${ADDRESS}?${new URLSearchParams({ q: text.slice(0, 200), of })}`;
    if (!kept.has(address)) {
      try {
        const reply = await fetch(address, { credentials: "omit", headers: { Accept: "application/json" } });
        if (!reply.ok) return [];
        kept.set(address, (await reply.json()).items);
        if (kept.size > KEPT_MAX) kept.delete(kept.keys().next().value);
      } catch {
        return []; // the server is not reachable
      }
    }
    return kept.get(address) ?? [];
  }

  function saved(box, text) {
    const of = box.input.dataset.suggest;
    const start = text.replace(/^@/, "").toLowerCase();
    if (of === "names" || (!start && !text)) return [];
    return [...document.querySelectorAll("a[data-saved]")]
      .filter((link) => (of === "all" || link.dataset.saved === of) && link.textContent.slice(1).toLowerCase().startsWith(start))
      .map((link) => ({ kind: "saved", label: link.textContent, text: link.dataset.query, meaning: link.dataset.query, address: link.href }));
  }

  function show(box, items) {
    const { input, list } = box;
    box.items = items;
    box.chosen = -1;
    list.replaceChildren(...items.map((item, place) => {
      const option = document.createElement("li");
      option.id = `${list.id}-${place}`;
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", "false");
      const text = document.createElement("span");
      text.className = "mono";
      text.textContent = item.label ?? item.text;
      const meaning = document.createElement("span");
      meaning.className = "sub";
      meaning.textContent = item.meaning;
      option.append(text, meaning);
      return option;
    }));
    list.hidden = items.length === 0;
    input.setAttribute("aria-expanded", String(!list.hidden));
    input.removeAttribute("aria-activedescendant");
    if (list.hidden) return;
    list.style.left = `${input.offsetLeft}px`;
    list.style.top = `${input.offsetTop + input.offsetHeight}px`;
    list.style.minWidth = `${input.offsetWidth}px`;
  }

  function close(box) {
    window.clearTimeout(box.timer);
    box.asked += 1;
    if (!box.list.hidden) show(box, []);
  }

  function choose(box, place) {
    const { input, list } = box;
    box.chosen = place;
    [...list.children].forEach((option, own) => option.setAttribute("aria-selected", String(own === place)));
    if (place < 0) {
      input.removeAttribute("aria-activedescendant");
      return;
    }
    input.setAttribute("aria-activedescendant", list.children[place].id);
    list.children[place].scrollIntoView({ block: "nearest" });
  }

  function press(box, event) {
    if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    const count = box.items.length;
    const is_open = !box.list.hidden;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!is_open) ask(box, true);
      else if (event.key === "ArrowDown") choose(box, box.chosen + 1 < count ? box.chosen + 1 : -1);
      else choose(box, box.chosen < 0 ? count - 1 : box.chosen - 1);
    } else if (event.key === "Escape" && is_open) {
      event.preventDefault(); // the text stays
      close(box);
    } else if (event.key === "Enter" && is_open && box.chosen >= 0) {
      event.preventDefault();
      take(box, box.items[box.chosen]);
    } else if (event.key === "Tab" && is_open) {
      close(box);
    }
  }

  // Put a suggestion into the input, or go to its page.
  function take(box, item) {
    const { input } = box;
    if (!item) return;
    close(box);
    if (input.dataset.suggest === "all") {
      const models = input.dataset.models;
      if (item.kind === "saved") window.location.assign(item.address);
      else if (item.kind === "model") window.location.assign(`${models}/${item.text.split("/").map(encodeURIComponent).join("/")}`);
      else window.location.assign(`${models}?${new URLSearchParams({ q: item.text })}`);
      return;
    }
    const { from, text } = typed(box);
    const after = input.value.slice(from + text.length);
    const wants_value = is_query(box) && /[:=]$/.test(item.text);
    const put = item.text + (is_query(box) && !wants_value && !/^\s/.test(after) ? " " : "");
    input.value = input.value.slice(0, from) + put + after;
    input.setSelectionRange(from + put.length, from + put.length);
    input.dispatchEvent(new Event("change", { bubbles: true }));
    if (wants_value) ask(box, true);
  }

  set_up(document);
  document.addEventListener("mainreplaced", () => set_up(document));
  document.addEventListener("focusin", (event) => {
    if (event.target.matches("input[data-suggest]")) combobox(event.target);
  });
})();
