// Hits that are loaded later: shows their times, and focuses the first one.
import { byId, find, findAll, keep, localise } from "./dom.js";

export const allHits = () => findAll("#found .hit");
export const wordsOf = (hit) => [...new Set(findAll("mark", hit).map((mark) => mark.textContent.toLowerCase()))];

/** Store the words that the page of a hit has to mark. */
export function leaveWords(hit) {
  keep("words", { path: find("a", hit).pathname, words: wordsOf(hit) });
}
document.addEventListener("click", ({ target }) => {
  if (target.closest(".hit a")) leaveWords(target.closest(".hit"));
});
let loaded = 0;
let isAsked = false;

document.addEventListener("htmx:before:swap", ({ detail: { tasks } }) => {
  const more = byId("more-hits");
  loaded = tasks.some(({ target }) => target === more) ? allHits().length : 0;
  isAsked = loaded > 0 && more.contains(document.activeElement);
});
document.addEventListener("htmx:after:swap", () => {
  if (!loaded) return;
  localise(byId("found"));
  const first = allHits()[loaded];
  if (isAsked && first) find("a", first).focus({ preventScroll: true });
  loaded = 0;
});
