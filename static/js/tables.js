// Converts tables to CSV (RFC 4180) or Markdown. Loaded with the first use.
import { findAll } from "./dom.js";

const rowsOf = (table) => [...table.rows].map((row) => [...row.cells]);
const replaceAll = (root, selector, textOf) => findAll(selector, root).forEach((one) => one.replaceWith(textOf(one)));

function textOf(cell) {
  const copy = cell.cloneNode(true);
  replaceAll(copy, "math", (math) => math.getAttribute("alttext"));
  return copy.textContent.trim();
}

/** Return a cell as CSV. A spreadsheet would compute a cell that begins like a formula. */
function csvCell(cell) {
  const text = textOf(cell);
  const safe = /^[=@\t\r]|^[+-](?![\d.,\s%]*$)/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export const csv = (table) => rowsOf(table).map((cells) => `${cells.map(csvCell).join(",")}\r\n`).join("");

const MARKS = { STRONG: "**", EM: "*", S: "~~" };

function markdownCell(cell) {
  const copy = cell.cloneNode(true);
  replaceAll(copy, "math", (math) => `$${math.getAttribute("alttext")}$`);
  replaceAll(copy, "sup", (note) => `[^${note.textContent}]`);
  replaceAll(copy, "code", (code) => `\`${code.textContent}\``);
  for (const marked of findAll("strong, em, s", copy)) {
    marked.prepend(MARKS[marked.tagName]);
    marked.append(MARKS[marked.tagName]);
  }
  replaceAll(copy, "a", (link) => `[${link.textContent}](${link.getAttribute("href")})`);
  return copy.textContent.trim().replaceAll("|", "\\|").replaceAll("\n", "<br>");
}

const RULES = { "ta-left": ":--", "ta-center": ":-:", "ta-right": "--:" };

export function markdown(table) {
  const [head, ...rows] = rowsOf(table);
  const line = (cells) => `| ${cells.join(" | ")} |\n`;
  const rule = line(head.map(({ className }) => RULES[className] ?? "---"));
  return line(head.map(markdownCell)) + rule + rows.map((cells) => line(cells.map(markdownCell))).join("");
}
