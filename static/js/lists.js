// Lists that change after their page has come: their times, more of a list of sessions, and what
// is new in it. Loaded with the first swap, or after a minute.
import { find, findAll, localise } from "./dom.js";

const times = () => findAll("[data-session-list], .cards").forEach(localise);
let version = "";

/** After a swap: a group that goes on is one group, and this page is listed once. */
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
  activeElement.focus({ preventScroll: true }); // a link that was moved has lost it
}

/** Nothing is taken from under somebody's hand, nor what was loaded later, which the answer lacks. */
const isInUse = () => document.hidden
  || find("form.filter input:focus, [data-session-list] :is(.menu[open], :checked, [autofocus])");

/** The list as the filter asks for it now. */
function address() {
  const form = find("form.filter");
  const url = new URL(form.action);
  for (const [name, value] of new FormData(form)) url.searchParams.set(name, value);
  return url;
}

/** Once a minute. */
export async function renew() {
  times();
  const list = window.htmx && find("[data-session-list]");
  if (!list || isInUse()) return;
  const url = address();
  if (url.searchParams.has("before")) return;
  const headers = { "HX-Request": "true", "If-None-Match": version };
  const response = await fetch(url, { headers, redirect: "error", cache: "no-store" }).catch(() => ({}));
  const text = response.ok && await response.text(); // not where nothing has changed
  if (!text || isInUse() || address().href !== url.href) return;
  version = response.headers.get("ETag");
  window.htmx.swap({ text, target: list, sourceElement: list, swap: "innerMorph" });
}
