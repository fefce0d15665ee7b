// The running answer. Each part has an element with an element for each block, so that a finished
// block is written once and never moves. Loaded with the first answer.
import { byId, create, find, findAll, fromTemplate } from "./dom.js";
import { allRows } from "./marks.js";
import { gettext } from "./words.js";

const holder = byId("draft");
const parts = new Map();
let hears;
const MAX_TEXT_CHARS = 2000; // the browser lays out the whole text node for each word

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

/** Append plain text to the innermost open element. Writing the block would parse and lay out all
 * of it again. */
function extendBlock(part, drop, added) {
  const kept = drop < 0 ? 0 : part.html.length - drop; // -1: replace everything
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

/** Append text. Long code is split into blocks of some lines. */
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

/** Write a frame. Text arrives as HTML blocks. Thinking and tool arguments arrive as plain text. */
function write(part, { text, blocks = [], drop, open }) {
  if (open === undefined) return part.body.append(text);
  for (const html of blocks) {
    if (html.includes('rich"')) import("./rich.js");
    writeBlock(part, html);
    if (document.documentElement.dataset.hears === "parts" && !part.body.closest(".think")) {
      // One promise is used for all, because promises of several imports can resolve out of order.
      (hears ??= import("./hears.js")).then(({ tellPart }) => tellPart(html));
    }
    part.open = null;
    part.html = "";
  }
  if (drop || open) extendBlock(part, drop, open);
}

/** Write a frame to its part. Return false if text before the frame is missing. */
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

export function clearDraft() {
  parts.clear();
  holder.replaceChildren();
}

/** Return a point as the index of its block, or of the block before it, and a character offset. */
function pointIn(blocks, node, offset) {
  if (!holder.contains(node)) return { node, offset };
  const range = new Range();
  const index = Math.max(0, blocks.findLastIndex((block) => {
    range.selectNode(block);
    return range.comparePoint(node, offset) >= 0;
  }));
  range.selectNodeContents(blocks[index]);
  if (range.comparePoint(node, offset) <= 0) range.setEnd(node, offset);
  return { index, length: range.toString().length };
}

/** Return the node and offset of a point, or undefined if the rows have no such block. */
function nodeAt(blocks, { index, length, node, offset }) {
  if (node || !blocks[index]) return node && [node, offset];
  const texts = document.createTreeWalker(blocks[index], NodeFilter.SHOW_TEXT);
  let text = texts.nextNode();
  while (text?.length < length) {
    length -= text.length;
    text = texts.nextNode();
  }
  return text ? [text, length] : [blocks[index], 0];
}

/** Replace the draft with the rows that `add` adds. The reader's place, selection and focus in the
 * text are kept, and open thinking stays open. */
export function endDraft(add) {
  const log = byId("transcript");
  const { scrollTop } = log;
  const before = findAll(".row-assistant > .think, .blk > *", holder);
  const seen = before.findIndex((block) => block.getBoundingClientRect().bottom > log.getBoundingClientRect().top);
  const top = before[seen]?.getBoundingClientRect().top;
  const inside = (block) => [block, ...findAll("*", block)];
  const held = before.findIndex((block) => block.contains(document.activeElement));
  const nth = held < 0 ? -1 : inside(before[held]).indexOf(document.activeElement);
  const selection = getSelection();
  const isSelected = !selection.isCollapsed && before.some((block) => selection.containsNode(block, true));
  const ends = isSelected && [
    pointIn(before, selection.anchorNode, selection.anchorOffset),
    pointIn(before, selection.focusNode, selection.focusOffset),
  ];
  const rows = new Set(allRows());

  clearDraft();
  add();

  const added = allRows().filter((row) => !rows.has(row));
  // Rows have an estimated height until they are painted. Drafts have their real height.
  const answers = added.filter((row) => !row.matches(".row-user"));
  const paint = (isDraft) => answers.forEach((row) => row.classList.toggle("draft", isDraft));
  paint(true);
  requestAnimationFrame(() => requestAnimationFrame(() => paint(false)));
  const after = added.flatMap((row) => findAll(":scope.row-assistant > .think, :scope.row-assistant > .md > *", row));
  before.forEach((block, index) => block.open && after[index]?.matches("details") && (after[index].open = true));
  log.scrollTop = scrollTop;
  if (after[seen]) log.scrollTop += after[seen].getBoundingClientRect().top - top;
  if (after[held]) inside(after[held])[nth]?.focus({ preventScroll: true });
  const [from, to] = ends ? ends.map((end) => nodeAt(after, end)) : [];
  if (from && to) selection.setBaseAndExtent(...from, ...to);
}
