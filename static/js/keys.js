// Keys of the chat, but for Enter and Esc. Single letters work outside of fields only
// and can be switched off. Loaded with the first key outside of a field.
import { byId, create, findAll } from "./dom.js";
import { allRows } from "./marks.js";
import { firstVisible } from "./transcript.js";

const help = byId("help");
const letters = byId("letters");
try { letters.checked = localStorage.getItem("loom:letters") !== "off"; } catch { /* off */ }
letters.addEventListener("change", () => {
  try { localStorage.setItem("loom:letters", letters.checked ? "on" : "off"); } catch { /* off */ }
});

const { style } = help.dataset;
const styled = new Promise((resolve) => {
  document.head.append(create("link", { rel: "stylesheet", href: style, onload: resolve, onerror: resolve }));
});
export const showHelp = () => styled.then(() => help.open || help.showModal());

function moveRow(step) {
  const rows = allRows().filter((row) => row.offsetParent);
  const at = rows.indexOf(document.activeElement.closest("#rows > .row"));
  const row = at < 0 ? firstVisible() : rows[at + step];
  if (!row) return;
  row.tabIndex = -1;
  row.addEventListener("blur", () => row.removeAttribute("tabindex"), { once: true });
  row.focus();
}

function moveSession(step) {
  const links = findAll("#sessions .session > a");
  links[links.findIndex((link) => link.ariaCurrent) + step]?.click();
}

const KEYS = {
  j: () => moveRow(1),
  k: () => moveRow(-1),
  f: () => byId("find-open").click(),
  "?": showHelp,
  "alt ArrowUp": () => moveSession(-1),
  "alt ArrowDown": () => moveSession(1),
  "control shift o": () => document.querySelector("[data-new-session]")?.click(),
};

export function press(event) {
  const control = event.ctrlKey || event.metaKey;
  const plain = !control && !event.altKey;
  const key = event.key.length > 1 || plain ? event.key : event.key.toLowerCase();
  const name = plain ? key : `${control ? "control " : ""}${event.altKey ? "alt " : ""}${event.shiftKey ? "shift " : ""}${key}`;
  const typing = event.target.matches("input, textarea, select");
  if (!(name in KEYS) || help.open || (plain && (typing || !letters.checked))) return;
  event.preventDefault();
  KEYS[name]();
}
