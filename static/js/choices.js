// A list of choices for a text field. The keyboard focus stays in the field, and screen readers
// announce the current choice (the ARIA pattern of a combobox with a listbox).
import { create, find, findAll } from "./dom.js";
import { ngettext } from "./words.js";

let made = 0;

/** Return how well a text matches the typed text: smaller is better, and NaN is no match. A match
 * has all typed characters in this order. Adjacent characters at the start are best. */
export function fit(text, typed) {
  const [name, wanted] = [text.toLowerCase(), typed.toLowerCase().replace(/\s+/g, " ").trim()];
  const at = name.indexOf(wanted);
  if (at >= 0) return at && (/[\s/._-]/.test(name[at - 1]) ? 1 : 2);
  let last = -1;
  for (const char of wanted.replaceAll(" ", "")) {
    last = name.indexOf(char, last + 1);
    if (last < 0) return NaN;
  }
  return 3 + last / 1e6;
}

/** Return the items that match by name, the best first, then items that match by description. */
export function fitting(items, typed) {
  const words = typed.trim().toLowerCase();
  const ranked = [];
  for (const item of items) {
    const isSaid = item.says?.toLowerCase().includes(words);
    const rank = fit(item.name, typed);
    if (isSaid || !Number.isNaN(rank)) ranked.push([Number.isNaN(rank) ? 9 : rank, item]);
  }
  return ranked.sort(([a], [b]) => a - b).map(([, item]) => item);
}

/** Return the choices of a command's argument that match. `choice` is the whole command. */
export const fittingChoices = ({ name: command, choices }, typed) => fitting(choices.map(({ value, says, about = value }) => (
  { name: says, says: about, choice: `/${command} ${value}` }
)), typed);

function option(id, { name, says, argument, isCode }) {
  const line = create("div", { id, role: "option", className: "choice", ariaSelected: "false" });
  line.append(create(isCode ? "code" : "span", { className: "name", textContent: name }));
  if (argument) find(".name", line).append(" ", create("i", { textContent: argument }));
  if (says) line.append(create("span", { className: "says", textContent: says }));
  return line;
}

export class Choices {
  items = [];
  at = -1;

  /** `choose(item, byTab)` is called with the chosen item. */
  constructor(field, { label, choose }) {
    const id = `choices-${++made}`;
    this.field = field;
    this.choose = choose;
    this.list = create("div", { id, role: "listbox", className: "choices", ariaLabel: label, hidden: true, tabIndex: 0 });
    this.note = create("p", { className: "choices-note", hidden: true });
    this.status = create("p", { className: "sr", role: "status" });
    this.box = create("div", { className: "choices-box", hidden: true });
    this.box.append(this.list, this.note);
    this.box.addEventListener("pointerdown", (event) => event.preventDefault()); // keep the focus in the field
    this.list.addEventListener("click", ({ target }) => {
      const index = this.lines().indexOf(target.closest("[role=option]"));
      if (index >= 0) this.take(index);
    });
  }

  get parts() {
    return [this.box, this.status];
  }

  /** Whether there are choices. */
  get isOpen() {
    return !this.list.hidden;
  }

  get isShown() {
    return !this.box.hidden;
  }

  lines() {
    return findAll("[role=option]", this.list);
  }

  /** Show groups `{ label, items }`. Without items only the note is shown. */
  show(groups, { note = "", empty = "", isKept = false } = {}) {
    const at = isKept ? this.at : 0;
    this.items = groups.flatMap(({ items }) => items);
    let index = 0;
    this.list.replaceChildren(...groups.filter(({ items }) => items.length).map(({ label, items }) => {
      const group = create("div", { className: "choice-group" });
      if (label) {
        group.role = "group";
        group.ariaLabel = label;
        group.append(create("div", { className: "choice-label", textContent: label, ariaHidden: "true" }));
      } else group.role = "presentation";
      group.append(...items.map((item) => option(`${this.list.id}-${index++}`, item)));
      return group;
    }));
    const many = this.items.length;
    this.list.hidden = !many;
    const words = [many ? "" : empty, note].filter(Boolean).join(" ");
    this.note.textContent = words;
    this.note.hidden = !words;
    this.box.hidden = !many && !words;
    const count = ngettext("%(count)s choice", "%(count)s choices", many);
    this.say([many ? count : "", words].filter(Boolean).join(". "));
    this.field.setAttribute("aria-controls", this.list.id);
    this.field.setAttribute("aria-autocomplete", "list");
    if (this.field.role === "combobox") this.field.ariaExpanded = String(Boolean(many));
    this.point(many ? Math.min(at, many - 1) : -1);
  }

  say(text) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => { this.status.textContent = text; }, 300); // not after each letter
  }

  point(index) {
    this.at = index;
    this.lines().forEach((line, place) => {
      line.ariaSelected = String(place === index);
      if (place === index) line.scrollIntoView({ block: "nearest" });
    });
    if (index < 0) this.field.removeAttribute("aria-activedescendant");
    else this.field.setAttribute("aria-activedescendant", `${this.list.id}-${index}`);
    if (index === 0) find(".choice-label", this.list)?.scrollIntoView({ block: "nearest" });
  }

  hide() {
    if (!this.isShown) return;
    this.box.hidden = this.list.hidden = true;
    this.items = [];
    this.at = -1;
    this.say("");
    for (const name of ["aria-controls", "aria-activedescendant", "aria-autocomplete"]) this.field.removeAttribute(name);
    if (this.field.role === "combobox") this.field.ariaExpanded = "false";
  }

  take(index, byTab = false) {
    this.choose(this.items[index], byTab);
  }

  /** Handle a key. Return true if the list has used it. */
  press({ key, shiftKey, ctrlKey, metaKey, altKey }) {
    if (!this.isOpen || ctrlKey || metaKey || altKey) return false;
    const many = this.items.length;
    if (shiftKey) return false;
    const moves = {
      ArrowDown: (this.at + 1) % many,
      ArrowUp: (this.at - 1 + many) % many,
      PageDown: Math.min(this.at + 8, many - 1),
      PageUp: Math.max(this.at - 8, 0),
    };
    if (key in moves) this.point(moves[key]);
    else if (key === "Enter" || key === "Tab") this.take(this.at, key === "Tab");
    else return false;
    return true;
  }
}
