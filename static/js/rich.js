// What rows get that hold more than plain Markdown. Loaded with the first of them, like their
// style sheet; without scripts all of it can be read.
import { byId, create, find, findAll } from "./dom.js";
import { addStyle } from "./styles.js";
import { gettext } from "./words.js";

addStyle(byId("transcript").dataset.richStyle);

/** Long code shows its beginning. What was written while the page was open has been watched: it
 * stays as it is, so that nothing jumps under the reader. */
function fold(block, row) {
  const written = new Date(find(".foot > time", row)?.dateTime);
  if (written > performance.timeOrigin || row.matches(".folding")) return;
  block.classList.add("short");
  const textContent = gettext("Show all %(count)s lines", { count: block.dataset.lines });
  const button = create("button", { type: "button", className: "unfold-code", textContent });
  button.dataset.action = "unfold-code";
  block.append(button);
}

export function enrich(row) {
  for (const block of findAll(".code[data-lines]", row)) fold(block, row);
  const diagrams = findAll("[data-lang=mermaid]", row);
  if (diagrams.length) import("./diagrams.js").then(({ watch }) => diagrams.forEach(watch));
}

const PAPER = 640; // CSS pixels: what an A4 page has room for, where nothing scrolls

addEventListener("beforeprint", () => {
  const range = new Range();
  for (const formula of findAll("math")) {
    range.selectNodeContents(formula);
    formula.style.setProperty("--fit", Math.min(1, PAPER / range.getBoundingClientRect().width));
  }
});
