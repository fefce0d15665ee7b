// The running answer: one element for each part and, in it, one for each block, so
// that a finished block is written once and never moves. Loaded with the first answer.
import { byId, create, find, fromTemplate } from "./dom.js";
import { gettext } from "./words.js";

const holder = byId("draft");
const parts = new Map();
let hears;
const MAX_TEXT_CHARS = 2000; // all of it is laid out anew for each word

function add(element) {
  holder.append(element);
  return element;
}

function place({ kind, name, word }) {
  if (kind === "tool_use") {
    import("./calls.js");
    const row = add(fromTemplate("draft-tool"));
    Object.assign(find("b", row), { textContent: word ?? gettext("Tool call"), title: name ?? "" });
    return find("code", row);
  }
  const last = holder.lastElementChild;
  const row = last?.matches(".row-assistant") ? last : add(fromTemplate("draft-row"));
  const element = fromTemplate(kind === "thinking" ? "draft-thinking" : "draft-text");
  find(".foot", row).before(element);
  return element.matches(".md") ? element : find(".md", element);
}

function writeBlock(part, html) {
  if (!part.open) part.body.append(part.open = create("div", { className: "blk" }));
  part.open.innerHTML = part.html = html;
}

/** Text at the end of all that is open goes there; the block would be parsed and laid out anew. */
function extendBlock(part, drop, added) {
  const kept = drop < 0 ? 0 : part.html.length - drop; // -1: all of it gives way
  const end = part.html.slice(kept);
  const more = drop ? added.slice(0, -drop) : added;
  if (!/^(<\/\w+>\n?)+$/.test(end) || more + end !== added || more.includes("<")) {
    return writeBlock(part, part.html.slice(0, kept) + added);
  }
  part.html = part.html.slice(0, kept) + added;
  let inner = part.open;
  for (const _ of end.matchAll("</")) inner = inner.lastElementChild;
  addText(inner, more.includes("&") ? create("textarea", { innerHTML: more }).textContent : more);
}

/** Long code goes into blocks of some lines. */
function addText(element, text) {
  const block = element.matches("pre > code") && (element.lastElementChild ?? element);
  const last = (block || element).lastChild;
  const full = last?.length > MAX_TEXT_CHARS;
  const cut = block && full ? text.indexOf("\n") + 1 : 0;
  if (cut) {
    last.appendData(text.slice(0, cut));
    const lines = create("span", { className: "lines", textContent: text.slice(cut) });
    element.style.display = lines.style.display = "block";
    element.append(lines);
  } else if (last?.nodeType === Node.TEXT_NODE && (block || !full)) last.appendData(text);
  else element.append(text);
}

/** Text comes as HTML of its blocks, thinking and the arguments of a tool as they are. */
function write(part, { text, blocks = [], drop, open }) {
  if (open === undefined) return part.body.append(text);
  for (const html of blocks) {
    if (html.includes('rich"')) import("./rich.js");
    writeBlock(part, html);
    if (document.documentElement.dataset.hears === "parts" && !part.body.closest(".think")) {
      // By one promise: those of several imports may be kept in another order.
      (hears ??= import("./hears.js")).then(({ tellPart }) => tellPart(html));
    }
    part.open = null;
    part.html = "";
  }
  if (drop || open) extendBlock(part, drop, open);
}

/** Write one frame. False when text before it is missing. */
export function writeDraft(frame) {
  let part = parts.get(frame.part);
  if (!part) parts.set(frame.part, part = { body: place(frame), length: 0, html: "" });
  if (frame.reset) {
    part.body.replaceChildren();
    Object.assign(part, { length: 0, open: null, html: "" });
  }
  if (!frame.reset && frame.offset !== part.length) return false;
  part.length = frame.offset + [...frame.text].length; // the server counts code points
  write(part, frame);
  return true;
}

/** The parts so far give way to their rows. */
export function clearDraft() {
  parts.clear();
  holder.replaceChildren();
}
