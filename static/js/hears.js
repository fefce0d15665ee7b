// Announces answers to screen readers, as the person has chosen. Loaded with the first part or end.
import { byId, create, find, findAll } from "./dom.js";
import { gettext } from "./words.js";

const log = create("div", { className: "sr", role: "log" });
log.ariaLive = "polite";
byId("announce").after(log);
let told = ""; // announced text of the running answer, without white space

const bare = (text) => text.replace(/\s+/g, "");

function textOf(element) {
  const copy = element.cloneNode(true);
  for (const one of findAll("button, .code-head, script, style", copy)) one.remove();
  return copy.textContent.replace(/[^\S\n]+/g, " ").replace(/\s*\n\s*/g, "\n").trim();
}

function say(text) {
  if (!text) return;
  log.append(create("p", { textContent: text }));
  if (log.children.length > 20) log.firstElementChild.remove();
}

/** Announce a paragraph of the running answer. */
export function tellPart(html) {
  const text = textOf(create("div", { innerHTML: html }));
  told += bare(text);
  say(text);
}

/** Return the part of the text that has not been announced. */
function restOf(text) {
  if (!bare(text).startsWith(told)) return text;
  let at = 0;
  for (let left = told.length; left; at++) if (/\S/.test(text[at])) left--;
  return text.slice(at).trim();
}

/** Announce the rest of the answer. ``end`` is its last row if that says more. */
export function tellEnd(end) {
  const rows = findAll("#rows > .row");
  const answer = rows.slice(rows.findLastIndex((row) => row.matches(".row-user")) + 1).filter((row) => row.matches(".row-assistant"));
  const text = answer.map((row) => find(":scope > .md", row)).filter(Boolean).map(textOf).join("\n");
  if (document.documentElement.dataset.hears !== "nothing") say(restOf(text));
  told = "";
  const notice = end?.previousElementSibling; // why the answer failed or is incomplete
  if (notice?.matches(".row-info")) say(find("p", notice).textContent);
  say(end && end.dataset.state !== "completed" ? end.innerText : gettext("Answer complete"));
}
