// The page of a session for reviewers: days between the rows, the requested turn, the buttons of
// code blocks, and remarks that are not saved yet.
import { byId, create, find, findAll, formatDay, keep, recall } from "./dom.js";

let last = "";
for (const time of findAll("#rows .row .foot > time")) {
  const day = formatDay(new Date(time.dateTime));
  if (day !== last) time.closest(".turn").before(create("p", { className: "day", textContent: day }));
  last = day;
}

if (!location.hash) find("[data-target]")?.scrollIntoView();

for (const form of findAll(".remark")) {
  const { text, turn } = form.elements;
  const name = `remark:${new URL(form.action).pathname}:${turn?.value ?? ""}`;
  // A text that is among the remarks has been saved.
  const saved = findAll(".remarks .pre", form.closest("section"));
  if (saved.some((one) => one.textContent === recall(name)?.trim())) keep(name);
  text.value ||= recall(name) ?? "";
  form.parentElement.open ||= text.value !== "";
  text.addEventListener("input", () => keep(name, text.value));
}

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
