// Typed text survives a reload, and sent messages are kept until they are on disk.
import { byId, find, fromTemplate, isOver, keep, newId, recall, refuse } from "./dom.js";
import { LOST } from "./socket.js";
import { follow } from "./transcript.js";

const { session, target } = byId("transcript").dataset;
const form = byId("composer");
const field = byId("message");
const DRAFT = `draft:${session}`;
export const FILES = `files:${session}`;
const PENDING = `pending:${session}`;
const found = recall(PENDING) ?? [];
const pending = new Map(found);
export const due = new Set(); // ids to send with the next message
let opening; // the import of attach.js
const withFiles = (use) => (opening = import("./attach.js").then(use, () => refuse(LOST, opening = 0)));
const withCommands = (use) => import("./commands.js").then(use, () => use && refuse(LOST));

function keepText() {
  keep(DRAFT, field.value);
  if (/^\/|@/.test(field.value)) withCommands();
}
/** Return all tabs' pending messages. Drop messages that another tab has settled. */
function waiting() {
  const all = new Map(recall(PENDING));
  for (const [id] of found) all.has(id) || (pending.delete(id), standIn(id)?.remove());
  return all;
}
function keepPending(done) {
  const all = new Map([...waiting(), ...pending]);
  all.delete(done);
  keep(PENDING, all.size && [...all]);
}
const excess = () => [...field.value.trimEnd()].length - form.dataset.max; // the server counts code points
const standIn = (id) => find(`#pending [data-client-id="${id}"]`);

export function setText(text) {
  field.value = text;
  keepText();
  field.focus();
}

function drawPending() {
  for (const [id, [text]] of pending) {
    if (standIn(id)) continue;
    const row = fromTemplate("draft-message");
    row.dataset.clientId = id;
    find("p", row).textContent = text;
    byId("pending").append(row);
  }
}

function confirm(id, done) {
  pending.delete(id);
  keepPending(id);
  if (done) standIn(id)?.remove();
}

export function takePending(id) {
  const message = pending.get(id) ?? [];
  confirm(id, true);
  return message;
}

export const settleMessage = (id) => id && confirm(id, true);

/** The message is on disk: its row follows or is on the page, or it is queued. */
export const acknowledged = ({ client_id: id, seq, queued }) => confirm(id, queued || byId(`row-${seq}`));

export function startComposer(socket) {
  const post = (some) => {
    waiting();
    for (const [id, [text, attachments, now]] of pending) if (due.delete(id) || !some) socket.send({ type: "send", client_id: id, text, attachments, now });
  };
  setTimeout(drawPending, 1500); // most are confirmed by then

  function send(now) {
    const text = field.value.trimEnd();
    if (/^\/([a-z]+|[\w-]+:[\w.-]+)(\s|$)/i.test(text) && !form.literal) return withCommands(({ run }) => run(text));
    if (excess() > 0) return import("./too-long.js").then(({ refuseLength }) => refuseLength(excess), () => refuse(LOST));
    if (isOver) return refuse(LOST);
    if (opening && !form.takeFiles) return opening.then(() => opening && send(now));
    const files = form.takeFiles?.() ?? [];
    if (form.waits) return;
    refuse();
    setText("");
    if (!text && !files[0]) return;
    const id = newId();
    due.add(id);
    pending.set(id, [text, files, now]);
    keepPending();
    drawPending();
    follow();
    if (socket.line.ready) post(true);
  }

  if (form) {
    field.value ||= recall(DRAFT) ?? "";
    field.addEventListener("input", keepText);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      send();
    });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey) return;
      const breaks = "enter" in document.documentElement.dataset || matchMedia("(pointer: coarse)").matches;
      if (breaks && !event.ctrlKey && !event.metaKey && !event.altKey) return;
      event.preventDefault();
      send(event.altKey);
    });
    if (recall(FILES)) withFiles();
    for (const kind of ["paste", "dragover", "drop"]) document.addEventListener(kind, (event) => {
      const { files, types } = event.clipboardData ?? event.dataTransfer;
      if (!types.includes("Files") || types.includes("text/plain")) return;
      event.preventDefault();
      const list = [...files];
      withFiles(({ take }) => take(kind, list));
    });
    if (matchMedia("(pointer: fine)").matches && !target) field.focus();
  }
  return post;
}
