// The box that selects all sessions that are shown.
import { find, findAll } from "./dom.js";

const boxes = () => findAll(".sessions .pick");

document.addEventListener("change", ({ target }) => {
  const all = find("[data-pick-all]");
  if (target === all) for (const box of boxes()) box.checked = all.checked;
  else if (all && target.matches(".pick")) all.checked = boxes().every((box) => box.checked);
});
