// Additions to rows with more than plain Markdown, which can also be read without scripts. Loaded
// with the first such row, like the style sheet.
import { byId, create, find, findAll } from "./dom.js";
import { addStyle } from "./styles.js";
import { gettext, numberText } from "./words.js";

addStyle(byId("transcript").dataset.richStyle);

/** Fold long code to its beginning. Code that was written while the page was open is not folded, so
 * that nothing moves while the person reads. */
function fold(block, row) {
  const written = new Date(find(".foot > time", row)?.dateTime);
  if (written > performance.timeOrigin || row.matches(".folding")) return;
  block.classList.add("short");
  const textContent = gettext("Show all %(count)s lines", { count: numberText(block.dataset.lines) });
  const button = create("button", { type: "button", className: "unfold-code", textContent });
  button.dataset.action = "unfold-code";
  block.append(button);
}

export function enrich(row) {
  for (const block of findAll(".code[data-lines]", row)) fold(block, row);
  const diagrams = findAll("[data-lang=mermaid]", row);
  if (diagrams.length) import("./diagrams.js").then(({ watch }) => diagrams.forEach(watch));
}

const PAPER = 640; // width of an A4 page in CSS pixels, as printed pages cannot scroll

addEventListener("beforeprint", () => {
  const range = new Range();
  for (const formula of findAll("math")) {
    range.selectNodeContents(formula);
    formula.style.setProperty("--fit", Math.min(1, PAPER / range.getBoundingClientRect().width));
  }
});
