// Updates of lists after the page has loaded: their times, further sessions, and new sessions.
// Loaded with the first swap, or after a minute.
import { find, findAll, localise } from "./dom.js";

const times = () => findAll("[data-session-list], .cards").forEach(localise);
let version = "";

/** After a swap, join groups with the same title, and list the session of this page only once. */
export function join() {
  times();
  const { activeElement } = document;
  for (const group of findAll(".group + .group")) {
    const before = group.previousElementSibling;
    if (find("h2", before).textContent !== find("h2", group).textContent) continue;
    find("ul", before).append(...find("ul", group).children);
    group.remove();
  }
  const [first, again] = findAll(".session > [aria-current]");
  if (again) {
    const group = first.closest(".group");
    first.parentElement.remove();
    if (!find(".session", group)) group.remove();
  }
  activeElement.focus({ preventScroll: true }); // a moved link has lost the focus
}

/** Whether the list is in use, so that it must not be replaced. The response would also lack
 * sessions that were loaded later. */
const isInUse = () => document.hidden
  || find("form.filter input:focus, [data-session-list] :is(.menu[open], :checked, [autofocus])");

/** Return the URL of the list with the current filters. */
function address() {
  const form = find("form.filter");
  const url = new URL(form.action);
  for (const [name, value] of new FormData(form)) url.searchParams.set(name, value);
  return url;
}

/** Reload the list. This is called once a minute. */
export async function renew() {
  times();
  const list = window.htmx && find("[data-session-list]");
  if (!list || isInUse()) return;
  const url = address();
  if (url.searchParams.has("before")) return;
  const headers = { "HX-Request": "true", "If-None-Match": version };
  const response = await fetch(url, { headers, redirect: "error", cache: "no-store" }).catch(() => ({}));
  const text = response.ok && await response.text(); // not if nothing has changed (304)
  if (!text || isInUse() || address().href !== url.href) return;
  version = response.headers.get("ETag");
  window.htmx.swap({ text, target: list, sourceElement: list, swap: "innerMorph" });
}
