// Shows a turn, unfolds it if needed, and marks words in it with the browser's highlights, which do
// not change the rows. Loaded with the first use.
import { byId, find, findAll, recall } from "./dom.js";
import { allRows } from "./marks.js";

const isShown = (row) => Boolean(row.offsetParent);

/** Return the row of a turn. The row of a started call is replaced by its completed row. */
function rowOf(turn, words) {
  const own = allRows().filter(({ dataset }) => dataset.turn === String(turn));
  const rows = own.filter((row) => !row.matches(".settled"));
  const holds = (row) => words.some((word) => row.textContent.toLowerCase().includes(word));
  const call = own[0]?.dataset.call;
  return rows.find(holds) ?? rows[0] ?? (call && find(`#rows > [data-call="${CSS.escape(call)}"]:not(.settled)`));
}

function unfold(row) {
  if (row.matches(".folded")) {
    let mark = row;
    while (mark && !mark.matches(".group-mark")) mark = mark.previousElementSibling;
    mark?.click();
  }
  find(":scope > .unfold", row)?.click();
  for (const details of findAll(":scope > details", row)) if (row.matches(".row-tool")) details.open = true;
}

function rangesOf(row, words) {
  const ranges = [];
  const texts = document.createTreeWalker(row, NodeFilter.SHOW_TEXT);
  for (let node; (node = texts.nextNode());) {
    if (node.parentElement.closest(".foot, .cap, .code-head")) continue;
    const text = node.data.toLowerCase();
    for (const word of words) {
      for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
        const range = new Range();
        range.setStart(node, at);
        range.setEnd(node, Math.min(at + word.length, node.length));
        ranges.push(range);
      }
    }
  }
  return ranges;
}

/** Return the words of the search that has opened this page. */
function leftWords() {
  const left = recall("words");
  return left?.path === location.pathname ? left.words : [];
}

/** Show a turn. Return false if it is not among the rows. `words` are in lower case. */
export function reveal(turn, words = leftWords()) {
  const row = rowOf(turn, words);
  CSS.highlights?.delete("found");
  if (!row) return false;
  unfold(row);
  if (!isShown(row)) return false;
  const ranges = words.length ? rangesOf(row, words) : [];
  ranges[0]?.startContainer.parentElement.closest("details:not([open])")?.toggleAttribute("open", true);
  if (ranges.length && CSS.highlights) CSS.highlights.set("found", new Highlight(...ranges));
  ranges[0]?.startContainer.parentElement.closest(".short")?.classList.remove("short");
  row.scrollIntoView({ block: "center" });
  const log = byId("transcript");
  if (ranges.length && row.offsetHeight > log.clientHeight) {
    log.scrollTop += ranges[0].getBoundingClientRect().top - log.getBoundingClientRect().top - log.clientHeight / 3;
  }
  row.classList.add("target");
  row.onanimationend = () => row.classList.remove("target");
  return true;
}
