// The list of a workspace's sessions: a box selects all that are shown, and what the list is
// narrowed down to stands in the address, so that a reload and the way back show the same.
import { find, findAll } from "./dom.js";

const boxes = () => findAll(".sessions .pick");

document.addEventListener("change", ({ target }) => {
  const all = find("[data-pick-all]");
  if (target === all) for (const box of boxes()) box.checked = all.checked;
  else if (all && target.matches(".pick")) all.checked = boxes().every((box) => box.checked);
});

document.addEventListener("htmx:after:swap", () => {
  const asked = [...new FormData(find("form.filter"))].filter(([, value]) => value);
  history.replaceState(null, "", `?${new URLSearchParams(asked)}`);
});
