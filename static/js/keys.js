// Keys of the chat except Enter and Esc. Single letters work only outside of fields and can be
// switched off. Loaded with the first key outside of a field.
import { byId, create, findAll, parseHtml } from "./dom.js";
import { allRows } from "./marks.js";
import { firstVisible } from "./transcript.js";
import { addStyle } from "./styles.js";
import { gettext } from "./words.js";

const preferences = document.documentElement.dataset;
let help;

/** Whether keys without Ctrl or Alt are switched on. */
const hasLetters = () => !("keys" in preferences);

function makeSwitch() {
  const box = create("input", { type: "checkbox", checked: hasLetters() });
  box.addEventListener("change", async () => {
    const keys = box.checked ? "all" : "no_letters";
    if (box.checked) delete preferences.keys;
    else preferences.keys = keys;
    (await import("./choose.js")).choose("keys", keys);
  });
  const label = create("label", { className: "check" });
  label.append(box, gettext("Single-letter shortcuts"));
  return label;
}

async function loadHelp(link) {
  const response = await fetch(link.href, { headers: { "HX-Request": "true" }, redirect: "error" });
  if (!response.ok) throw new Error(`status ${response.status}`);
  const [lists] = parseHtml(await response.text());
  await addStyle(lists.dataset.style);
  const title = gettext("Commands and keyboard shortcuts");
  const dialog = create("dialog", { className: "help-dialog", ariaLabel: title });
  const head = create("form", { method: "dialog" });
  const close = create("button", { className: "btn small", textContent: gettext("Close") });
  head.append(create("h2", { textContent: title }), close);
  dialog.append(head, lists, makeSwitch());
  document.body.append(dialog);
  return dialog;
}

/** Show commands and keys in a dialog, or as a page if they cannot be loaded. */
export async function showHelp() {
  const link = byId("help-open");
  try {
    help ??= await loadHelp(link);
  } catch {
    return location.assign(link.href);
  }
  if (!help.open) help.showModal();
}

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
  "/": () => byId("message")?.focus(),
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
  if (!(name in KEYS) || preferences.keys === "none" || document.querySelector("dialog[open]") || (plain && (typing || !hasLetters()))) return;
  event.preventDefault();
  KEYS[name]();
}
