// Actions on a row: copy, link, edit, regenerate, retry, continue. Loaded with the first use.
import { announce } from "./announce.js";
import { byId, create, find, fromTemplate, isOver, keep, recall, refuse } from "./dom.js";
import { allRows, arrange, opened, toolRuns } from "./marks.js";
import { putBack, putBackQueued } from "./refused.js";
import { LOST } from "./socket.js";
import { gettext, numberText } from "./words.js";

async function sourceOf({ dataset }) {
  const response = await fetch(`${byId("transcript").dataset.url}t/${dataset.turn}/source/`, { redirect: "error" });
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response.text();
}

/** Copy with a hidden field, because pages without TLS cannot use the clipboard. */
function copyByField(text) {
  const field = Object.assign(document.createElement("textarea"), { value: text, className: "sr" });
  const active = document.activeElement;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  active.focus({ preventScroll: true });
  if (!done) throw new Error("refused");
}

/** Copy a text or a promise of it. Safari allows access to the clipboard only during the click, so
 * the call cannot wait for a text that is still loading. */
async function copy(button, text) {
  try {
    if (navigator.clipboard?.write) {
      const blob = Promise.resolve(text).then((value) => new Blob([value], { type: "text/plain" }));
      await navigator.clipboard.write([new ClipboardItem({ "text/plain": blob })]);
    } else {
      copyByField(await text);
    }
  } catch {
    return refuse(gettext("Copying failed. Select the text and copy it yourself."));
  }
  announce(gettext("Copied"));
  button.classList.add("copied");
  setTimeout(() => button.classList.remove("copied"), 1500);
}

/** Send a request and disable the button until its end. `end` gets the problem, or nothing. */
function request(socket, button, frame, end = refuse) {
  const isByKeyboard = button.matches(":focus-visible");
  button.disabled = true;
  socket.request(frame, (problem) => {
    const isStill = [button, document.body].includes(document.activeElement); // else the person has moved on
    button.disabled = false;
    // The disabled button has lost the focus, and it may be removed.
    if (isByKeyboard && isStill) (problem && button.isConnected ? button : byId("message")).focus();
    end(problem);
  });
}

async function edit(button, row, socket) {
  let source;
  try {
    source = await sourceOf(row);
  } catch {
    return refuse(gettext("The text could not be loaded. Try again."));
  }
  if (row.matches(".editing")) return;
  const editor = fromTemplate("editor");
  const field = find("textarea", editor);
  const closed = new AbortController();
  const key = `edit:${byId("transcript").dataset.session}:${row.dataset.turn}`;
  const close = (focused = button) => {
    keep(key);
    closed.abort();
    editor.remove();
    row.classList.remove("editing");
    focused.focus();
  };
  field.value = recall(key) ?? source;
  editor.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = field.value.trim();
    if (!text || text === source.trim()) return close();
    request(socket, find(".primary", editor), { type: "edit", turn: Number(row.dataset.turn), text }, (problem) => {
      if (problem) find(".error", editor).textContent = problem;
      else close(byId("message"));
      if (problem && !row.isConnected) rescue();
    });
  });
  /** Move the text to the composer when the row or the page goes away. */
  function rescue() {
    if (find(".primary", editor).disabled) return; // the edit is being sent
    const text = field.value.trim();
    close(byId("message"));
    if (text !== source.trim()) putBack(text);
  }
  document.addEventListener("loom:frame", () => {
    if (!row.isConnected) rescue();
  }, closed);
  addEventListener("pagehide", rescue, closed);
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) editor.requestSubmit();
    if (event.key !== "Escape") return;
    event.preventDefault();
    const text = field.value;
    close();
    if (text.trim() !== source.trim()) keep(key, text); // after Esc by mistake, Edit restores the text
  });
  find("[data-cancel]", editor).addEventListener("click", () => close());
  row.classList.add("editing");
  row.append(editor);
  field.focus();
}

/** Return the turn of the nearest message of a person before an answer. */
function questionOf(row) {
  while (row && row.dataset.eventType !== "user_message") row = row.previousElementSibling;
  return Number(row?.dataset.turn);
}

/** Return the whole output, even if the page has only its beginning. */
function outputOf(pre, row) {
  const cut = find(":scope > [data-action=more]", pre.nextElementSibling ?? pre);
  return cut && row?.dataset.turn ? sourceOf(row) : pre.textContent;
}

const inCalls = (name) => (...args) => import("./calls.js").then(({ ACTS }) => ACTS[name](...args));

function toggleGroup(button) {
  const { first } = button.dataset;
  const run = toolRuns(allRows()).find(([row]) => row.dataset.seq === first);
  for (const { dataset } of run) button.ariaExpanded === "true" ? opened.delete(dataset.seq) : opened.add(dataset.seq);
  arrange();
  find(`[data-first="${first}"]`, byId("rows")).focus();
}

/** Save a code block as a file, with the block's file name or the suffix of its language. */
function download(button) {
  const { file, lang } = blockOf(button).dataset;
  const url = URL.createObjectURL(new Blob([find("pre", blockOf(button)).textContent], { type: "text/plain" }));
  create("a", { href: url, download: file?.split(/[\\/]/).at(-1) || `code.${SUFFIXES[lang] ?? "txt"}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
const SUFFIXES = {
  bash: "sh", c: "c", cpp: "cpp", csharp: "cs", css: "css", diff: "diff", go: "go", html: "html", java: "java",
  javascript: "js", json: "json", jsx: "jsx", kotlin: "kt", lua: "lua", markdown: "md", mermaid: "mmd", php: "php",
  powershell: "ps1", python: "py", r: "r", ruby: "rb", rust: "rs", sql: "sql", swift: "swift", tex: "tex",
  toml: "toml", tsx: "tsx", typescript: "ts", xml: "xml", yaml: "yaml",
};

const tableOf = (button) => find("table", button.parentElement.nextElementSibling);
const copyTable = (format) => (button) => copy(button, import("./tables.js").then((formats) => formats[format](tableOf(button))));

/** Focus the footnote of a mark. */
function showNote(button, row) {
  const note = find(`.note[data-note="${CSS.escape(button.dataset.note)}"]`, row);
  if (!note) return announce(gettext("This footnote is not in this message"));
  note.tabIndex = -1;
  note.focus({ preventScroll: true });
  note.scrollIntoView({ block: "nearest" });
}

function unfoldCode(button) {
  const isShort = blockOf(button).classList.toggle("short");
  button.textContent = isShort ? gettext("Show all %(count)s lines", { count: numberText(blockOf(button).dataset.lines) }) : gettext("Show less");
  if (isShort) blockOf(button).scrollIntoView({ block: "nearest" });
}

const blockOf = (button) => button.closest(".code");

const openPalette = () => import("./palette.js").then(({ open }) => open());

/** Find out after a lost connection whether a message was withdrawn. It was if it is not in the
 * queue and its run has not begun. If the page is left before that is known, the text is given
 * back, because a text that exists twice is better than a lost one. */
function learnOf({ run, client }, giveBack) {
  const known = new AbortController();
  const end = () => {
    known.abort();
    refuse();
    giveBack();
  };
  let isBack = false;
  document.addEventListener("loom:frame", ({ detail: { type, rows = [], items = [] } }) => {
    isBack ||= type === "hello";
    if (isBack && rows.some((row) => row.client_id === client)) known.abort();
    else if (isBack && type === "queue" && !items.some((item) => item.run === run)) end();
  }, known);
  addEventListener("pagehide", end, known);
}

/** Runs whose texts were given back. A message may be withdrawn twice before a result is known. */
const givenBack = new Set();

const ACTIONS = {
  copy: (button, row) => copy(button, row.dataset.turn ? sourceOf(row) : find(".md", row).innerText),
  "copy-output": (button, row) => copy(button, outputOf(button.parentElement.nextElementSibling, row)),
  "copy-code": (button) => copy(button, find("pre", blockOf(button)).textContent),
  "download-code": download,
  "unfold-code": unfoldCode,
  "copy-csv": copyTable("csv"),
  "copy-table": copyTable("markdown"),
  "diagram-source": (button) => import("./diagrams.js").then(({ toggle }) => toggle(blockOf(button))),
  note: showNote,
  "wrap-code": (button) => { button.ariaPressed = blockOf(button).classList.toggle("wrapped"); },
  link: (button) => copy(button, button.href),
  edit,
  regenerate: (button, row, socket) => {
    const turn = questionOf(row);
    if (turn) request(socket, button, { type: "regenerate", turn });
    else refuse(gettext("The message this answers is not loaded. Load older messages first."));
  },
  retry: (button, row, socket) => request(socket, button, { type: "retry" }),
  continue: (button, row, socket) => request(socket, button, { type: "continue" }),
  withdraw: (button, row, socket) => {
    const item = button.closest("li");
    const { run } = item.dataset;
    request(socket, button, { type: "withdraw", run }, (problem) => {
      refuse(problem);
      const giveBack = () => {
        if (!givenBack.has(run)) putBackQueued(item);
        givenBack.add(run);
      };
      if (!problem) giveBack();
      else if (problem === LOST) learnOf(item.dataset, giveBack); // else the run may have begun
    });
  },
  now: (button, row, socket) => {
    const { run } = button.closest("li").dataset;
    if (!socket.send({ type: "now", run, stop: "stop" in button.dataset })) return refuse(LOST);
    if (button.matches(":focus-visible")) byId("message").focus(); // the list will be replaced
  },
  "version-close": () => import("./versions.js").then(({ close }) => find(".versions button:enabled", close())?.focus()),
  fork: (link) => {
    const form = byId("act");
    form.action = `${link.href}fork/`;
    form.submit();
  },
  palette: openPalette,
  models: () => {
    document.body.dataset.step = "model";
    openPalette();
  },
  unfold: (button, row) => {
    row.classList.remove("folding");
    button.remove();
    row.tabIndex = -1;
    row.focus({ preventScroll: true }); // the button had the focus
  },
  // Insert the text like typed text after the existing text, so that Ctrl Z undoes it.
  example: (button) => {
    const field = byId("message");
    field.focus();
    field.selectionStart = field.value.length;
    document.execCommand("insertText", false, `${field.value && "\n\n"}${button.textContent}`);
  },
  // After a sign-out, a message that is being written is lost with the page.
  "sign-in": (link) => {
    const isLost = isOver && byId("message")?.value;
    if (!isLost || confirm(gettext("The message you are writing will be lost. Leave this page?"))) location.assign(link.href);
  },
  attach: () => import("./attach.js").then(({ choose }) => choose()),
  view: (link) => import("./view.js").then(({ view }) => view(link)),
  group: toggleGroup,
  approve: inCalls("approve"),
  deny: inCalls("deny"),
  answer: inCalls("answer"),
  "cancel-call": inCalls("cancel"),
  more: inCalls("more"),
  panel: (link) => import("./panel.js").then(({ show }) => show(link)),
  find: (link) => import("./find.js").then(({ open }) => open(link)),
  "panel-close": () => import("./panel.js").then(({ close }) => close()),
  "panel-again": () => import("./panel.js").then(({ again }) => again()),
  help: () => import("./keys.js").then(({ showHelp }) => showHelp()),
};

export const act = (button, socket) => ACTIONS[button.dataset.action]?.(button, button.closest(".row"), socket);
