// Frames are handled in one batch per animation frame.
import { byId, find, findAll, fromTemplate, parseHtml, refuse } from "./dom.js";
import { acknowledged, settleMessage, startComposer } from "./composer.js";
import { LOST, Socket } from "./socket.js";
import { addRows, afterFrames, cursor, follow, lacksNewer, replaceRows, start } from "./transcript.js";

const { dataset } = byId("transcript");
const line = byId("status");
const stopButton = byId("stop");
let waiting = [];
let synced = 0;
let later;
let reloads;
let refused = Promise.resolve();
let draft;
let since = 0;
let clock = 0;
let banner = 0;

const isBusy = () => dataset.runState in line.dataset;
const toLatest = () => (lacksNewer() ? location.assign(dataset.url) : follow());
// With its run, a late stop does not stop the next answer.
const stop = () => socket.send({ type: "stop", run: dataset.run }) || refuse(LOST);

function tick() {
  const seconds = Math.floor((Date.now() - since) / 1000);
  const minutes = Math.floor(seconds / 60);
  byId("elapsed").textContent = isBusy() && seconds ? ` · ${minutes ? `${minutes} min ` : ""}${seconds % 60} s` : "";
}

function showState({ run_state: state, run = "", text, elapsed_ms: elapsed = 0 }) {
  const ended = isBusy() && !(state in line.dataset);
  dataset.run = run;
  dataset.runState = state;
  const words = isBusy() ? text || line.dataset[state] : "";
  if (line.textContent !== words) line.textContent = words;
  since = Date.now() - elapsed;
  tick();
  clearInterval(clock);
  if (words) clock = setInterval(tick, 1000);
  else clearDraft();
  if (stopButton) {
    if (ended && document.activeElement === stopButton) byId("message").focus();
    stopButton.hidden = !words;
  }
  if (words || ended) import("./tab.js").then(({ show }) => show(ended ? "done" : state));
  if (!ended) return;
  const end = find("#rows > .row-end:last-child, #rows > .row-info:last-child");
  import("./hears.js").then(({ tellEnd }) => tellEnd(end));
}

/** Most breaks are shorter than a second. */
function showConnection(state) {
  const say = () => {
    const lost = state !== "open" && fromTemplate(`line-${state}`);
    byId("banner").replaceChildren(lost || "");
    line.parentElement.hidden = lost;
  };
  if (state === "closed") return (banner ||= setTimeout(say, 1000));
  clearTimeout(banner);
  banner = 0;
  say();
}

/** Ask for rows at most once a second. A request for missing rows is delayed. */
function sync(lacks) {
  const wait = synced + 1000 - Date.now();
  if (wait > 0) {
    if (!lacks) return;
    clearTimeout(later);
    return (later = setTimeout(sync, wait, lacks));
  }
  synced = Date.now();
  socket.send({ type: "sync", after: cursor() });
}

const clearDraft = () => draft?.clearDraft();

/** Frames before the module is loaded are requested again. */
function writeDraft(frame) {
  if (draft) return draft.writeDraft(frame) || sync();
  import("./draft.js").then((module) => {
    draft = module;
    sync();
  });
}

const FRAMES = {
  hello: () => {
    if (byId("refused")?.textContent === LOST) refuse();
    socket.attempt = 0;
    socket.line.ready = true;
    sendAgain();
  },
  ack: (frame) => {
    acknowledged(frame);
    if ((socket.answer(frame.client_id) || lacksNewer()) && "seq" in frame) toLatest();
  },
  error: (frame) => socket.answer(frame.client_id, frame.message) || (refused = refused
    .then(() => import("./refused.js")).then(({ take }) => take(frame, sendAgain)).catch(() => refuse(LOST))),
  rows: ({ rows, after, ends_draft: ends }) => {
    for (const row of rows) settleMessage(row.client_id);
    const add = () => addRows(rows, after) || sync(true);
    if (ends && draft) draft.endDraft(add);
    else add();
  },
  draft: writeDraft,
  call: (frame) => import("./calls.js").then(({ show }) => show(frame) || sync()),
  state: showState,
  queue: ({ html }) => byId("queue").replaceChildren(...parseHtml(html)),
  rewound: (frame) => {
    clearDraft();
    dataset.rewinds = Number(dataset.rewinds) + 1;
    replaceRows(frame);
  },
  window: (frame) => frame.key !== dataset.window && import("./window.js").then(({ showWindow }) => showWindow(frame)),
  title: ({ title }) => byId("title").textContent !== title && import("./tab.js").then(({ rename }) => rename(title)),
  model: ({ model }) => {
    for (const option of findAll("#model option")) option.selected = option.defaultSelected = option.value === model;
    if (byId("model")?.value !== model) byId("model")?.add(new Option(model, model, true, true));
  },
  people: (frame) => (frame.count > 1 || byId("people")) && import("./people.js").then(({ showPeople }) => showPeople(frame, socket)),
  // Wait while a file is being uploaded.
  reload: () => {
    clearTimeout(reloads);
    if (find("#tray :is(progress, button + button)")) reloads = setTimeout(FRAMES.reload, 1000);
    else location.reload();
  },
};

function flush() {
  const frames = waiting;
  waiting = [];
  for (const frame of frames) {
    FRAMES[frame.type]?.(frame);
    document.dispatchEvent(new CustomEvent("loom:frame", { detail: frame }));
  }
  if (frames.length) afterFrames();
}

/** A hidden tab has no animation frames. */
function take(frame) {
  if (waiting.push(frame) > 1) return;
  if (document.hidden) setTimeout(flush, 250);
  else requestAnimationFrame(flush);
}
document.addEventListener("visibilitychange", flush);

document.addEventListener("loom:rewound", () => import("./versions.js").then(({ markVersions }) => markVersions()));
document.addEventListener("loom:tools", () => import("./calls.js"), { once: true });
start(sync);
if (location.hash) import("./find.js");
const socket = new Socket({
  address: () => `${dataset.socket}after=${cursor()}&rewinds=${dataset.rewinds}&language=${document.documentElement.lang}`,
  onFrame: take,
  onState: showConnection,
});
const sendAgain = startComposer(socket);
showState({ run_state: dataset.runState, text: dataset.runText, elapsed_ms: dataset.elapsed });

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-action], #jump, #stop");
  if (!button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (button.id === "jump") toLatest();
  else if (button.id === "stop") stop();
  else import("./actions.js").then(({ act }) => act(button, socket)).catch((error) => {
    refuse(LOST);
    throw error;
  });
});

byId("model-form")?.addEventListener("htmx:error", ({ target }) => {
  target.reset();
  refuse(LOST);
});
document.addEventListener("htmx:response:error", (event) => import("./failed.js").then(({ tell }) => tell(event, refuse)));

let press;
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if (isBusy() && !event.defaultPrevented && !event.target.closest("dialog, [type=search]")) stop();
  } else if (press) press(event);
  else if (event.ctrlKey || event.metaKey || event.altKey || !event.target.matches("input, textarea")) {
    import("./keys.js").then((module) => (press = module.press)(event));
  }
});
