// A session list that goes on: more of it was loaded. Loaded with the first swap.
import { find, findAll } from "./dom.js";

/** A group that goes on is one group. The link to this page has to be marked there, too, and the
 * page is listed once. */
export function join() {
  const { activeElement } = document;
  for (const group of findAll(".group + .group")) {
    const before = group.previousElementSibling;
    if (find("h2", before).textContent !== find("h2", group).textContent) continue;
    find("ul", before).append(...find("ul", group).children);
    group.remove();
  }
  const here = findAll(`.session > a[href="${location.pathname}"]`);
  if (here[1]) here.shift().closest(".group").remove();
  here[0]?.setAttribute("aria-current", "page");
  activeElement.focus({ preventScroll: true }); // a link that was moved has lost it
}
