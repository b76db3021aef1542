// Uploading in the browser, in chunks. Each chunk has a digest, and is durable when the server has answered.
// After a reload, an upload resumes when the user chooses the same file and its beginning is the same.
"use strict";

const TRIES = 6;
const POLL_MS = 700;
const API = document.querySelector("[data-api]").dataset.api;
const SHARD = /^(.+)-\d{5}-of-(\d{5})\.gguf$/i;

const box = document.getElementById("drop");
const list = document.getElementById("sending");
const status = document.getElementById("status");
let token = null;
let hasToken = false;

box.querySelector("input").addEventListener("change", (event) => {
  take([...event.target.files]);
  event.target.value = "";
});
for (const name of ["dragenter", "dragover"]) {
  box.addEventListener(name, (event) => {
    event.preventDefault();
    box.classList.add("over");
  });
}
for (const name of ["dragleave", "drop"]) box.addEventListener(name, () => box.classList.remove("over"));
box.addEventListener("drop", (event) => {
  event.preventDefault();
  take([...event.dataTransfer.files]);
});
window.addEventListener("beforeunload", (event) => {
  if (list.querySelector("[data-busy]")) event.preventDefault();
});

// Shards of one set become one model. Every other file becomes a model of its own.
function take(files) {
  const models = new Map();
  for (const file of files) {
    const shard = SHARD.exec(file.name);
    const key = shard ? `${shard[1]} of ${shard[2]}` : file.name;
    const name = shard ? shard[1] : file.name.replace(/\.gguf$/i, "");
    if (!models.has(key)) models.set(key, { name, files: [] });
    models.get(key).files.push(file);
  }
  for (const model of models.values()) new Sending(model).run();
}

class Sending {
  constructor({ name, files }) {
    this.name = modelName(name);
    this.files = files;
    this.total = files.reduce((sum, file) => sum + file.size, 0);
    this.sent = 0;
    this.paused = null;
    this.row = document.getElementById("row").content.firstElementChild.cloneNode(true);
    this.row.querySelector("[data-name]").textContent = files.length > 1 ? `${name}, ${files.length} shards` : files[0].name;
    this.bar = this.row.querySelector("progress");
    this.note = this.row.querySelector("[data-note]");
    this.button = this.row.querySelector("[data-pause]");
    this.button.addEventListener("click", () => this.toggle());
    this.row.querySelector("[data-cancel]").addEventListener("click", () => this.cancel());
    list.append(this.row);
  }

  async run() {
    this.row.dataset.busy = "";
    try {
      if (this.files.some((file) => /\.safetensors$/i.test(file.name))) {
        throw new Refusal("Convert a safetensors model to GGUF first, with llama.cpp's convert_hf_to_gguf.py.");
      }
      if (this.files.some((file) => !/\.gguf$/i.test(file.name))) throw new Refusal("The file name must end in .gguf.");
      if (this.files.some((file) => file.size === 0)) throw new Refusal("The file is empty.");
      const uploads = [];
      for (const file of this.files) uploads.push({ name: file.name, upload: await this.send(file) });
      await this.submit(uploads);
    } catch (error) {
      if (error instanceof Cancelled) return;
      this.tell(error instanceof Refusal ? error.message : `The upload failed: ${error.message}`, true);
      this.button.hidden = true;
    } finally {
      delete this.row.dataset.busy;
    }
  }

  async send(file) {
    const before = this.sent;
    this.show(before);
    const upload = await this.begin(file, before);
    this.show(before + upload.received_bytes);
    const key = `organ upload ${upload.id}`;
    let known = read(key);
    while (upload.state === "open" && upload.received_bytes < file.size) {
      await this.gate();
      const begin = upload.received_bytes;
      const chunk = await bytesOf(file.slice(begin, begin + upload.chunk_bytes.least));
      const digest = await digestOf(chunk);
      const next = await chained(known?.chain ?? "", digest);
      write(key, { modified: file.lastModified, chain: known?.chain ?? "", next }); // the server may store the chunk although its answer is lost
      const answer = await this.put(upload, chunk, digest, begin, file.size, before);
      known = { modified: file.lastModified, chain: next };
      upload.received_bytes = answer.received_bytes;
      if (answer.received_bytes !== begin + chunk.byteLength) known = null; // another browser also sends to this upload
      write(key, known);
      this.show(before + upload.received_bytes);
    }
    if (upload.state === "open") {
      this.tell("the server checks the file");
      await call("PUT", `/uploads/${upload.id}`);
    }
    forget(key);
    this.show((this.sent = before + file.size));
    return upload.id;
  }

  // Return the upload session of this file. An earlier upload is resumed only if its bytes are the beginning of this file.
  async begin(file, before) {
    const wanted = { kind: "file", name: file.name, size_bytes: file.size };
    const upload = await call("POST", "/uploads", wanted);
    if (upload.received_bytes === 0 || upload.state !== "open" || (await this.isBeginning(upload, file, before))) return upload;
    await call("DELETE", `/uploads/${upload.id}`);
    forget(`organ upload ${upload.id}`);
    return call("POST", "/uploads", wanted);
  }

  async isBeginning(upload, file, before) {
    const known = read(`organ upload ${upload.id}`);
    if (!known) return false;
    if (!window.crypto.subtle) return known.modified === file.lastModified; // without TLS the browser cannot compute digests
    let chain = "";
    for (let begin = 0; begin < upload.received_bytes; begin += upload.chunk_bytes.least) {
      const end = Math.min(begin + upload.chunk_bytes.least, upload.received_bytes);
      this.show(before + begin, "checking what was already sent");
      chain = await chained(chain, await digestOf(await bytesOf(file.slice(begin, end))));
    }
    return chain === known.chain || chain === known.next;
  }

  async put(upload, chunk, digest, begin, size, before) {
    const headers = { "Content-Type": "application/octet-stream", "Content-Range": `bytes ${begin}-${begin + chunk.byteLength - 1}/${size}` };
    if (digest) headers["Content-Digest"] = `sha-256=:${digest}:`;
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await call("PATCH", `/uploads/${upload.id}`, chunk, headers, (gone) => this.show(before + begin + gone));
      } catch (error) {
        if (error instanceof Refusal || attempt === TRIES) throw error;
        this.show(before + begin);
        this.tell(`connection lost; retrying (${attempt})`);
        await sleep(500 * 2 ** attempt);
        await this.gate();
        const there = await call("GET", `/uploads/${upload.id}`).catch(() => null);
        if (there && there.received_bytes !== begin) return there;
      }
    }
  }

  async submit(files) {
    this.button.hidden = true;
    this.tell("checking");
    const address = `/models/${encodeURIComponent(box.dataset.namespace)}/${encodeURIComponent(this.name)}`;
    let submission = await call("PUT", address, { files, metadata: {}, publish: false });
    while (submission.state === "checking") {
      this.bar.value = submission.progress;
      this.tell(`checking, ${Math.floor(100 * submission.progress)}%`);
      await sleep(POLL_MS);
      submission = await call("GET", `/submissions/${submission.id}`);
    }
    const link = document.createElement("a");
    link.href = `${box.dataset.submissions}/${submission.id}`;
    link.textContent = submission.state === "refused" ? "refused: see the reasons" : "see the findings, and publish";
    this.note.replaceChildren(link);
    this.row.querySelector("[data-cancel]").hidden = true;
    this.announce(`${this.name}: ${link.textContent}`);
    delete this.row.dataset.busy;
    if (list.children.length === 1) window.location.assign(link.href);
  }

  toggle() {
    if (this.paused) {
      this.paused.open();
      this.paused = null;
    } else {
      let open;
      const opened = new Promise((resolve) => (open = resolve));
      this.paused = { open, opened };
      this.tell("paused");
    }
    this.button.textContent = this.paused ? "Resume" : "Pause";
  }

  async gate() {
    if (this.cancelled) throw new Cancelled();
    if (this.paused) await this.paused.opened;
    if (this.cancelled) throw new Cancelled();
  }

  // The server keeps the received bytes for a week; choosing the file again resumes the upload.
  cancel() {
    this.cancelled = true;
    if (this.paused) this.paused.open();
    this.row.remove();
    this.announce(`${this.name}: canceled. Choose the file again to resume.`);
  }

  show(sent, doing = "sending") {
    const shown = Math.min(sent, this.total);
    this.bar.value = this.total ? shown / this.total : 1;
    if (!this.paused) this.tell(`${doing}, ${partText(shown, this.total)}`);
  }

  tell(text, isFault = false) {
    this.note.textContent = text;
    this.note.classList.toggle("fault", isFault);
    if (isFault) this.announce(text);
  }

  announce(text) {
    status.textContent = text;
  }
}

class Refusal extends Error {}
class Cancelled extends Error {}

async function call(method, path, body = undefined, headers = {}, onSent = undefined) {
  for (let attempt = 1; ; attempt += 1) {
    const own = { ...headers };
    if (!hasToken) await newToken();
    if (token) own.Authorization = `Bearer ${token}`;
    const isJson = body !== undefined && !(body instanceof ArrayBuffer);
    if (isJson) own["Content-Type"] = "application/json";
    const answer = onSent
      ? await sendBytes(method, API + path, own, body, onSent)
      : await fetch(API + path, { method, headers: own, body: isJson ? JSON.stringify(body) : body, credentials: "omit", cache: "no-store" });
    if (answer.status === 401 && attempt === 1) {
      hasToken = false; // the token has expired
      continue;
    }
    if ((answer.status === 429 || answer.status === 503) && attempt < TRIES) {
      await sleep(1000 * Math.min(30, Number(answer.headers.get("Retry-After")) || attempt));
      continue;
    }
    const values = await answer.json().catch(() => null);
    if (answer.status === 416 && values) return values.upload ?? call("GET", path);
    if (answer.ok && values) return values;
    if (answer.status >= 500 || !values) throw new Error(`the server answered with status ${answer.status}`);
    throw new Refusal(values.detail ?? `the server answered with status ${answer.status}`);
  }
}

// Like fetch(), but call `onSent` with the number of bytes sent so far, which fetch() does not report.
function sendBytes(method, address, headers, bytes, onSent) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, address);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => onSent(event.loaded));
    request.addEventListener("load", () => {
      const wait = request.getResponseHeader("Retry-After");
      resolve(new Response(request.responseText || null, { status: request.status, headers: wait ? { "Retry-After": wait } : {} }));
    });
    for (const name of ["error", "abort", "timeout"]) request.addEventListener(name, () => reject(new Error("connection lost")));
    request.send(bytes);
  });
}

// Get a token of narrow scope for this page. It stays in memory and is sent as a header. A local server needs no token.
async function newToken() {
  const answer = await fetch(box.dataset.token, { method: "POST", body: new URLSearchParams(new FormData(document.getElementById("page"))) });
  if (!answer.ok) throw new Refusal("You are logged out. Log in, and choose the file again.");
  token = (await answer.json()).token;
  hasToken = true;
}

async function bytesOf(blob) {
  try {
    return await blob.arrayBuffer();
  } catch {
    throw new Refusal("The file cannot be read: it was changed or moved.");
  }
}

// Return a valid name for a new model (registry/names.py). A number computed from the text replaces letters that are not
// ASCII letters with accents: the same text gets the same name.
function modelName(text) {
  const plain = text.normalize("NFKD").replace(/\p{M}/gu, "");
  const joined = plain.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/[.-]{2,}/g, (run) => (run.includes("-") ? "-" : "."));
  const cut = (name, length) => name.replace(/^[._-]+/, "").slice(0, length).replace(/(?:[._-]|\.(?:gguf|json|csv|git))+$/i, "");
  const name = cut(joined, 96);
  if (name && !/[\p{L}\p{N}]/u.test(plain.replace(/[A-Za-z0-9]/g, ""))) return name;
  let number = 0;
  for (const letter of text) number = (Math.imul(number, 31) + letter.codePointAt(0)) >>> 0;
  return `${cut(joined, 87) || "model"}-${number.toString(16).padStart(8, "0")}`;
}

async function digestOf(bytes) {
  if (!window.crypto.subtle) return "";
  const digest = new Uint8Array(await window.crypto.subtle.digest("SHA-256", bytes));
  return window.btoa(String.fromCharCode(...digest));
}

async function chained(before, digest) {
  return digestOf(new TextEncoder().encode(before + digest).buffer);
}

function read(key) {
  try {
    return JSON.parse(window.localStorage.getItem(key));
  } catch {
    return null;
  }
}

function write(key, value) {
  try {
    window.localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // without storage, an upload restarts after a reload
  }
}

function forget(key) {
  try {
    window.localStorage.removeItem(key);
  } catch {
    // as above
  }
}

// Return the uploaded part of the total size, in the unit of the total: "0 of 50.3 MB".
function partText(part, whole) {
  const [step, unit] = whole < 1e6 ? [1e3, "kB"] : whole < 1e9 ? [1e6, "MB"] : [1e9, "GB"];
  const digits = whole < 1e9 ? 1 : 2;
  return `${part ? (part / step).toFixed(digits) : 0} of ${(whole / step).toFixed(digits)} ${unit}`;
}

function sleep(ms) {
  return new Promise((resolve) => window.setTimeout(resolve, ms));
}
