// A session list that goes on: more of it was loaded. Loaded with the first swap.
import { find, findAll } from "./dom.js";

/** A group that goes on is one group. The link to this page has to be marked there, too. */
export function join() {
  for (const group of findAll(".group + .group")) {
    const before = group.previousElementSibling;
    if (find("h2", before).textContent !== find("h2", group).textContent) continue;
    find("ul", before).append(...find("ul", group).children);
    group.remove();
  }
  find(`.session > a[href="${location.pathname}"]`)?.setAttribute("aria-current", "page");
}
