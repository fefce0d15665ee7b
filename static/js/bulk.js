// The list of a workspace's sessions: a box selects all that are shown, and what the list is
// narrowed down to stands in the address, so that a reload and the way back show the same.
import { find, findAll } from "./dom.js";

const boxes = () => findAll(".sessions .pick");

function showWhetherAll() {
  const all = find("[data-pick-all]");
  if (all) all.checked = boxes().length > 0 && boxes().every((box) => box.checked);
}

document.addEventListener("change", ({ target }) => {
  if (target.matches("[data-pick-all]")) for (const box of boxes()) box.checked = target.checked;
  else if (target.matches(".pick")) showWhetherAll();
});

document.addEventListener("htmx:after:swap", () => {
  showWhetherAll();
  const asked = [...new FormData(find("form.filter"))].filter(([, value]) => value);
  history.replaceState(null, "", `?${new URLSearchParams(asked)}`);
});
