// A session as reviewers read it: days between the rows, the turn that was asked for,
// and what can be done with a block of code.
import { byId, create, find, findAll, formatDay } from "./dom.js";

let last = "";
for (const time of findAll("#rows .row .foot > time")) {
  const day = formatDay(new Date(time.dateTime));
  if (day !== last) time.closest(".turn").before(create("p", { className: "day", textContent: day }));
  last = day;
}

if (!location.hash) find("[data-target]")?.scrollIntoView();

const ACTIONS = {
  "copy-code": async (button, block) => {
    await navigator.clipboard?.writeText(find("pre", block).textContent);
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1500);
  },
  "wrap-code": (button, block) => { button.ariaPressed = block.classList.toggle("wrapped"); },
};

byId("rows").addEventListener("click", ({ target }) => {
  const button = target.closest("[data-action]");
  ACTIONS[button?.dataset.action]?.(button, button.closest(".code"));
});
