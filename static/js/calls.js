// Tool calls: their output while they run, and the questions before they run. When a call has
// ended, its row from the server replaces all of this. Loaded with the first row of a tool.
import { announce } from "./announce.js";
import { byId, create, find, findAll, parseHtml, refuse } from "./dom.js";
import { setText } from "./composer.js";
import { addStyle } from "./styles.js";
import { gettext } from "./words.js";

const log = byId("transcript");
const list = byId("rows");
const WORDS = {
  started: ["started", gettext("Waiting")],
  waiting_approval: ["waiting", gettext("Waiting")],
  running: ["running", gettext("Running")],
};
const MAX_LIVE_LINES = 200;
const MAX_LIVE_CHARS = 20000;
const REST_MS = 1000; // time without a key press before the focus may move
const CUT_MS = 10000; // time in which a writer may not have noticed that their card is gone
const SEEN_MS = 500; // time until a card counts as seen
const ESCAPES = /(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]/g;
const HIDDEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

const changed = new Set();
const lives = new Map();
const known = new WeakMap();
const waiting = new Map();
const early = new Map(); // frames that arrived before their rows
const seenBefore = Number(log.dataset.lastSeq) || 0;
let clock = 0;
let typed = 0;
let cutAt = 0;
let offered;

addStyle(log.dataset.tools);

/* Live output. */

function makeLive(row) {
  const box = create("div", { className: "live" });
  const pre = create("pre", { tabIndex: 0, hidden: true, ariaLabel: gettext("Output so far"), role: "region" });
  const button = create("button", { type: "button", className: "btn small", textContent: gettext("Cancel") });
  button.dataset.action = "cancel-call";
  const call = `${find("b", row).textContent} ${find("summary code", row)?.textContent ?? ""}`;
  button.ariaLabel = gettext("Cancel: %(call)s", { call });
  box.append(pre, button);
  row.append(box);
  const live = { pre, box, text: "", length: 0 };
  lives.set(row, live);
  say();
  return live;
}

/** Restore the row as the server sent it. */
function forget(row) {
  lives.get(row)?.box.remove();
  if (lives.delete(row) && !lives.size) say();
  setState(row, "started");
  find("summary small", row).textContent = "";
  changed.delete(row);
}

/** Update the state line, but not while the run waits for approval: its frame sets the words. */
function say() {
  if (lives.size && log.dataset.runState === "waiting_approval") return;
  const line = byId("status");
  const words = lives.size ? gettext("A tool is running") : line.dataset[log.dataset.runState] ?? "";
  if (line.textContent !== words) line.textContent = words;
}

function setState(row, state) {
  changed.add(row);
  const element = find(".state", row);
  [element.dataset.state, element.textContent] = WORDS[state];
}

/** Return the text as a terminal shows it. An overwritten line has only its last text. */
function plain(text) {
  const lines = text.replace(ESCAPES, "").replace(/\r+\n/g, "\n").split("\n").slice(-MAX_LIVE_LINES);
  return lines.map((line) => line.replace(/\r+$/, "").split("\r").at(-1)).join("\n").replace(HIDDEN, "\ufffd");
}

function write(live, { text, offset, reset }) {
  if (reset) Object.assign(live, { text: "", length: offset });
  if (offset !== live.length) return false;
  const atEnd = live.pre.scrollHeight - live.pre.scrollTop - live.pre.clientHeight < 24;
  live.text = (live.text + text).slice(-MAX_LIVE_CHARS);
  live.length = offset + [...text].length;
  live.pre.textContent = plain(live.text);
  live.pre.hidden = !live.pre.textContent.trim();
  if (atEnd) live.pre.scrollTop = live.pre.scrollHeight;
  return true;
}

function tick() {
  for (const [row, { since }] of lives) {
    const seconds = since ? Math.floor((Date.now() - since) / 1000) : 0;
    find("summary small", row).textContent = seconds < 1 ? "" : seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  }
  if (!lives.size) clock = clearInterval(clock);
}

/** Show a frame of a call that has not ended. Return false if text before the frame is missing. */
export function show(frame) {
  const row = find(`:scope > [data-step="1"][data-call="${CSS.escape(frame.call)}"]:not(.settled)`, list);
  if (!(frame.state in WORDS)) return true;
  if (!row) {
    if (!find(`:scope > [data-step="4"][data-call="${CSS.escape(frame.call)}"]`, list)) early.set(frame.call, frame);
    return true;
  }
  setState(row, frame.state);
  if (frame.state !== "running") return true;
  const live = lives.get(row) ?? makeLive(row);
  if (frame.elapsed_ms !== undefined) live.since = Date.now() - frame.elapsed_ms;
  clock ||= setInterval(tick, 1000);
  tick();
  return frame.text === undefined || write(live, frame);
}

/* Questions. */

const questions = () => findAll(":scope > .row-ask:not(.settled)", list);
const jump = create("button", { type: "button", className: "btn small to-ask", textContent: gettext("Jump to the request"), hidden: true });
jump.addEventListener("click", () => focusOn(questions()[0]));
const all = create("button", { type: "button", className: "btn small", hidden: true });
find(".status").children[0].after(jump, all);
const toApprove = () => questions().map((row) => find("[data-action=approve]", row)).filter((button) => button && !button.disabled);
all.addEventListener("click", () => {
  for (const button of toApprove()) if (Date.now() - known.get(button.closest(".row")) > SEEN_MS) button.click();
});

const inSight = new Set();
const sight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) isIntersecting ? inSight.add(target) : inSight.delete(target);
  offerJump();
}, { root: log });

function offerJump() {
  const open = questions();
  jump.hidden = !open.length || open.some((row) => inSight.has(row));
  const { length } = toApprove();
  all.hidden = length < 2 || log.dataset.canWrite !== "true";
  all.textContent = gettext("Approve all (%(count)s)", { count: length });
}

/** Return the element to focus. Enter does not answer the question there. */
const cardOf = (row) => find(".ask", row);

function focusOn(row) {
  if (!row) return;
  row.scrollIntoView({ block: "nearest" });
  cardOf(row).focus({ preventScroll: true });
}

/** Focus the card if the reader is at the end and is not writing. */
function offer(row) {
  if (!row.isConnected || row.matches(".settled")) return;
  const active = document.activeElement;
  const field = byId("message");
  const isEmpty = active === field && !field.value;
  if (isEmpty && Date.now() - typed < REST_MS) return setTimeout(offer, REST_MS, row);
  const { top, bottom } = find(".ask-acts", row).getBoundingClientRect();
  const view = log.getBoundingClientRect();
  const isAtEnd = top >= view.top && bottom <= view.bottom + 1;
  if (!isAtEnd || !(isEmpty || active === document.body || active === log)) return;
  offered = isEmpty && cardOf(row);
  cardOf(row).focus({ preventScroll: true });
}

function ask(row) {
  known.set(row, Date.now());
  sight.observe(row);
  if (Number(row.dataset.seq) <= seenBefore) return;
  const text = (find(".ask-words", row) ?? find(".ask-head b", row)).textContent;
  announce(row.dataset.of ? gettext("Question: %(text)s", { text }) : gettext("Approval needed: %(text)s", { text }));
  import("./tab.js").then(({ show }) => show("waiting_approval"));
  if (log.dataset.canWrite === "true") setTimeout(offer, 100, row);
}

/** Return the element to focus when the focused one is gone. On touch screens this is not the
 * message field, because it would open the keyboard. */
const rest = () => (matchMedia("(pointer: fine)").matches && byId("message")) || log;

/** Move a text to the composer if somebody else has answered the card in which it was written. */
function moveWords(text) {
  if (!byId("message")) return;
  cutAt = Date.now();
  setText([byId("message").value.trim(), text].filter(Boolean).join("\n\n"));
  refuse(gettext("The request was answered. What you wrote is in the message field."));
}

/** Update everything after rows were added or removed. */
function look() {
  for (const row of changed) if (!row.isConnected || row.matches(".settled")) forget(row);
  for (const [call, { text, ...frame }] of [...early]) {
    early.delete(call);
    show(frame);
  }
  const answered = [...waiting].filter(([row]) => row.matches(".settled"));
  for (const [, end] of answered) end();
  const open = questions();
  for (const row of open) if (!known.has(row)) ask(row);
  const active = document.activeElement;
  const left = active.closest(".row-ask.settled");
  const isLost = left || (answered.length && active === document.body);
  const isWritten = active.matches("input:not([type=checkbox])") && active.value !== active.defaultValue;
  if (left && isWritten && !answered.some(([row]) => row === left)) moveWords(active.value);
  else if (isLost) open[0] ? focusOn(open[0]) : rest().focus({ preventScroll: true });
  offerJump();
}

document.addEventListener("keydown", (event) => {
  typed = Date.now();
  const { key, target } = event;
  // A person who keeps writing may not have noticed that the focus moved here. The first Enter
  // therefore does not send the message.
  if (key === "Enter" && target === byId("message") && Date.now() - cutAt < CUT_MS) {
    cutAt = 0;
    event.preventDefault();
    event.stopPropagation();
  }
  // If a person starts to write while the card has the focus, the text goes to the message field.
  if (target === offered && key.length === 1 && key !== " " && !event.ctrlKey && !event.metaKey && !event.altKey) byId("message").focus();
  if (!target.matches(".row-ask input:not([type=checkbox])")) return;
  if (key !== "Enter" && key !== "Escape") return;
  event.preventDefault();
  event.stopPropagation();
  const isReason = !target.matches("[data-field]");
  if (key === "Enter" && !(isReason && !target.value.trim())) find(isReason ? "[data-action=deny]" : "[value$=accept]", target.closest(".row-ask")).click();
  if (key === "Escape") byId("message")?.focus();
}, true);

/* Actions. */

/** Send a request. The controls are disabled until rows arrive, or the problem. */
function request(row, socket, frame, controls) {
  for (const control of controls) control.disabled = true;
  const end = (problem) => {
    for (const control of controls) control.disabled = false;
    waiting.delete(row);
    if (!row.matches(".settled")) refuse(problem);
  };
  waiting.set(row, end);
  socket.request({ call: row.dataset.call, ...frame }, end);
}

/** Return the values of the form, by the names of the fields. */
function readFields(row) {
  const content = {};
  for (const { dataset, type, checked, value } of findAll("[data-field]", row)) {
    const name = dataset.field;
    if ("many" in dataset) content[name] = [...(content[name] ?? []), ...(checked ? [value] : [])];
    else if (type === "checkbox") content[name] = checked;
    else content[name] = value;
  }
  return content;
}

function answer(button, row, socket) {
  const [question, action] = button.value.split(":");
  const content = action === "accept" ? readFields(row) : {};
  refuse();
  request(row, socket, { type: "answer", call: row.dataset.of, question, action, content }, findAll(".ask :is(button, input, select)", row));
}

const decide = (row, socket, frame) => request(row, socket, frame, findAll(".ask-acts :is(button, input)", row));

async function more(link) {
  const box = link.parentElement;
  const pre = box.previousElementSibling;
  if (link.ariaBusy) return;
  link.ariaBusy = "true";
  try {
    const response = await fetch(link.href, { headers: { "HX-Request": "true" } });
    if (!response.ok) throw new Error(`status ${response.status}`);
    const [part] = parseHtml(await response.text());
    const code = find("code", pre);
    if (!link.search) code.replaceChildren();
    code.append(...find(".output code", part).childNodes);
    const next = find(".output > .cut", part);
    const wasFocused = document.activeElement === link;
    if (next) box.replaceWith(next);
    else box.remove();
    if (wasFocused) (next ? find("a", next) : pre).focus({ preventScroll: true });
  } catch {
    link.ariaBusy = null;
    refuse(gettext("The output could not be loaded. Try again."));
  }
}

export const ACTS = {
  approve: (button, row, socket) => decide(row, socket, { type: "approve", always: button.name === "always" }),
  deny: (button, row, socket) => decide(row, socket, { type: "deny", reason: find("input", row).value.trim() }),
  answer,
  cancel: (button, row, socket) => request(row, socket, { type: "cancel" }, [button]),
  more,
};

// Load the whole output when a row is opened.
list.addEventListener("click", ({ target }) => {
  const details = target.closest(".row-tool summary")?.parentElement;
  const link = details && !details.open && find("[data-action=more]", details);
  if (link && !link.search) more(link);
});

// Arriving rows and output can move a button while it is pressed. The press stays with the button
// on which it began.
list.addEventListener("pointerdown", ({ target, pointerId }) => target.closest(".ask-acts button, .live > button")?.setPointerCapture(pointerId));

document.addEventListener("loom:tools", look);
look();
