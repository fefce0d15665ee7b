import { find, findAll, localise } from "./dom.js";

const { dataset } = document.documentElement;

// Days begin at the reader's midnight.
document.cookie = `loom_zone=${Intl.DateTimeFormat().resolvedOptions().timeZone};path=/;max-age=31536000`;

// marks.js localises rows.
findAll(document.body.matches(".chat") ? ".side, .dock" : "body").forEach(localise);
setInterval(() => import("./lists.js").then(({ renew }) => renew()), 60000);

// The sidebar's list is one Tab stop. Arrow keys move in it.
const links = () => findAll("nav[data-session-list] .session > a");
function rove(to = find("nav[data-session-list] [aria-current]") ?? links()[0]) {
  for (const stop of findAll("nav[data-session-list] :is(.session > a, summary)")) {
    stop.tabIndex = stop.closest(".session").contains(to) ? 0 : -1;
  }
  return to;
}
rove()?.scrollIntoView(false);

const toggleSide = () => import("./side.js").then(({ toggle }) => toggle());

// The page ignores keys of an input method.
addEventListener("keydown", (event) => {
  if (event.isComposing || event.keyCode === 229) event.stopImmediatePropagation();
}, true);

document.addEventListener("click", ({ target }) => {
  if (target.closest("[data-theme-toggle]")) import("./choose.js").then(({ nextTheme }) => nextTheme());
  if (target.closest("[data-side-toggle]")) toggleSide();
  for (const menu of findAll(".menu[open]")) if (!menu.contains(target)) menu.open = false;
});

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  const menu = key === "Escape" && find(".menu[open]");
  if (key === " " && target.matches("a[role=button]")) target.click();
  else if (key === "k" && event.ctrlKey !== event.metaKey && dataset.keys !== "none") import("./palette.js").then(({ open }) => open());
  else if (/^Arrow(Up|Down)$/.test(key) && !event.altKey && target.matches("nav[data-session-list] .session > a")) {
    const all = links();
    rove(all[all.indexOf(target) + (key === "ArrowUp" ? -1 : 1)] ?? target).focus();
  } else if (menu) {
    menu.open = false;
    find("summary", menu).focus();
  } else if (key === "Escape" && "drawer" in dataset) toggleSide();
  else return;
  event.preventDefault();
});

document.addEventListener("htmx:after:swap", () => import("./lists.js").then(({ join }) => rove(join())));

const app = find("[data-worker]");
if (app) navigator.serviceWorker?.register(app.dataset.worker);
