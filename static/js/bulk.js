// The list of a workspace's sessions. One box selects all sessions that are shown. The filters are
// kept in the URL, so that a reload and "back" show the same list.
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
