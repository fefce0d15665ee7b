// Hits that are loaded later: their times, and the focus on the first of them.
import { byId, find, findAll, localise } from "./dom.js";

export const allHits = () => findAll("#found .hit");
let loaded = 0;

document.addEventListener("htmx:before:swap", ({ detail: { tasks } }) => {
  loaded = tasks.some(({ target }) => target === byId("more-hits")) ? allHits().length : 0;
});
document.addEventListener("htmx:after:swap", () => {
  if (!loaded) return;
  localise(byId("found"));
  find("a", allHits()[loaded] ?? document)?.focus({ preventScroll: true });
  loaded = 0;
});
