// Commands in the composer, and files by name. The server has the table of commands and executes
// most of them. Loaded with the first "/" or "@" in the composer, and by the palette.
import { announce } from "./announce.js";
import { byId, create, find, findAll, refuse } from "./dom.js";
import { Choices, fitting, fittingChoices } from "./choices.js";
import { addStyle } from "./styles.js";
import { gettext } from "./words.js";

const { url } = byId("transcript").dataset;
const form = byId("composer");
const field = byId("message");
const ADDRESS = `${url}commands/`;
const MAX_RESOURCES = 8; // shown at once
const LOST = gettext("The server is not responding. Nothing was changed; try again.");
const FILE = /(?:^|\s)@("[^"\n]*|[^\s"@]*)$/;
// A command, or a prompt of a tool server in the form "server:prompt".
const NAMED = /^\/([a-z]*|[\w-]+:[\w.-]*)$/i;
const FOLLOWED = /^\/([a-z]+|[\w-]+:[\w.-]+)\s+(.*)$/is;

async function getJson(address, options) {
  const response = await fetch(address, { headers: { Accept: "application/json" }, redirect: "error", ...options });
  if (!response.headers.get("content-type")?.includes("json")) throw new Error(`status ${response.status}`);
  return response.json();
}

let table;
/** Load the commands that this person can use here, once, and again while tool servers connect. */
export function loadCommands() {
  table ??= getJson(ADDRESS).then(async (found) => {
    await addStyle(found.style);
    if (!found.is_complete) setTimeout(askAgain, 1000);
    return found;
  });
  table.catch(() => { table = null; });
  return table;
}

function setText(text, caret = text.length) {
  if (!field) return;
  field.value = text;
  field.setSelectionRange(caret, caret);
  field.dispatchEvent(new Event("input"));
  field.focus();
}

// Commands that the page executes without the server.

const closeClear = () => {
  byId("cleared")?.remove();
  for (const row of findAll("#rows > .cleared")) row.classList.remove("cleared");
};

function clear() {
  closeClear();
  const rows = findAll("#rows > .row");
  if (!rows.length) return { said: gettext("Nothing to clear.") };
  for (const row of rows) row.classList.add("cleared");
  const line = create("p", { id: "cleared", className: "floor" });
  const button = create("button", { type: "button", className: "btn small", textContent: gettext("Load older") });
  button.onclick = () => {
    const last = findAll("#rows > .cleared").at(-1);
    closeClear();
    last.scrollIntoView({ block: "end" });
    focusTranscript();
  };
  const [before, after] = gettext("Cleared from view. %(button)s shows them again.", { button: "\n" }).split("\n");
  line.append(before, button, after);
  byId("rows").before(line);
  announce(gettext("Cleared from view. Nothing is deleted."));
}

function focusTranscript() {
  byId("transcript").focus({ preventScroll: true });
}

async function history(words) {
  if (words && words.toLowerCase() !== "older") {
    const link = byId("find-open");
    link.href = `${url}find/?${new URLSearchParams({ q: words })}`;
    await import("./find.js");
    await (await import("./panel.js")).show(link);
    return {};
  }
  const isCleared = Boolean(byId("cleared"));
  closeClear();
  const older = find("#older a");
  focusTranscript();
  if (isCleared) return { said: gettext("Messages are shown again.") };
  if (!older) return { said: gettext("No older messages.") };
  older.click();
  byId("transcript").scrollTop = 0;
  return { said: gettext("Older messages are loaded.") };
}

/** Open the palette with sessions only. It is opened by an action, because the palette imports this
 * module, and file names with hashes of the contents do not allow circular imports. */
function resume(words) {
  document.body.dataset.resume = words;
  const button = create("button", {});
  button.dataset.action = "palette";
  document.body.append(button);
  button.click();
  button.remove();
}

const HERE = {
  help: () => import("./keys.js").then(({ showHelp }) => showHelp()),
  resume,
  history,
  clear,
};

/** Show the outcome of a command, or open the page to which it leads. */
async function follow({ said, url: address, opens }) {
  if (said) announce(said);
  if (!address || opens === "file") showSaid(said);
  if (!address) return;
  if (opens !== "panel") return location.assign(address);
  (await import("./panel.js")).show(create("a", { href: address }));
}

/** Show the outcome of a command as visible text, until the next command or for 8 seconds. */
function showSaid(said) {
  byId("said")?.remove();
  if (!said) return;
  const line = create("p", { id: "said", className: "notice", textContent: said });
  find(".dock > .status").after(line);
  setTimeout(() => line.remove(), 8000);
}

function tell(problem) {
  if (byId("refused")) return refuse(problem);
  announce(problem);
  showSaid(problem);
}

/** Say that a text is not a command. The person can change it, or send it as it is. */
function offerText(message) {
  refuse(message);
  const button = create("button", { type: "button", className: "btn", textContent: gettext("Send as a message") });
  button.onclick = () => {
    form.literal = true;
    form.requestSubmit();
    form.literal = false;
    field.focus();
  };
  byId("refused").append(button);
}

async function post(text) {
  const body = new FormData();
  body.set("csrfmiddlewaretoken", find("[name=csrfmiddlewaretoken]").value);
  body.set("text", text);
  return getJson(ADDRESS, { method: "POST", body });
}

/** Execute a command. A text that is not a command stays in the composer. */
export async function run(text, isTyped = true) {
  const [, name = "", argument = ""] = FOLLOWED.exec(text) ?? NAMED.exec(text.trimEnd()) ?? [];
  menu?.hide();
  let outcome;
  try {
    const { commands } = await loadCommands();
    const command = commands.find((one) => one.name === name.toLowerCase());
    const isHere = command && name.toLowerCase() in HERE && (command.argument || !argument.trim());
    if (isHere) outcome = (await HERE[command.name](argument.trim())) ?? {};
    else outcome = await post(text);
  } catch {
    return tell(LOST);
  }
  const { message, is_text: isText, opens, value } = outcome;
  if (message) {
    if (isText && isTyped && form) offerText(message);
    else tell(message);
    return;
  }
  refuse();
  if (opens === "text") return setText(value);
  if (isTyped && field?.value.trimEnd() === text.trimEnd()) {
    const { activeElement } = document;
    setText("");
    if (activeElement !== field) activeElement.focus({ preventScroll: true });
  }
  await follow(outcome);
}

// The list above the composer.

const menu = field && new Choices(field, { label: gettext("Commands and files"), choose });
if (menu) form.prepend(...menu.parts);
let asked = 0;
let closedFor = null;

function choose(item, byTab) {
  if (item.file) return putFile(item.file);
  if (item.resource) return putResource(item.resource);
  if (item.choice) return byTab ? setText(item.choice) : take(item.choice);
  const { command } = item;
  if (command.choices.length || command.needs_argument || (byTab && command.argument)) return setText(`/${command.name} `);
  if (byTab) return setText(`/${command.name}`);
  take(`/${command.name}`);
}

function take(text) {
  field.value = text;
  run(text);
}

function putFile(path) {
  const caret = field.selectionStart;
  const before = field.value.slice(0, caret);
  const start = caret - FILE.exec(before)[1].length;
  const name = /\s/.test(path) ? `"${path}" ` : `${path} `;
  const after = field.value.slice(caret).replace(/^"? ?/, "");
  menu.hide();
  setText(before.slice(0, start) + name + after, start + name.length);
}

/** Attach a resource to the message, and remove its typed name. */
async function putResource(name) {
  const caret = field.selectionStart;
  const before = field.value.slice(0, caret);
  const start = caret - FILE.exec(before)[1].length - 1;
  menu.hide();
  setText(before.slice(0, start) + field.value.slice(caret), start);
  (await import("./attach.js")).addResource(name);
}

const asItem = (command) => ({
  name: `/${command.name}`,
  argument: command.argument,
  says: command.says,
  isCode: true,
  command,
});

/** Show the commands, or the arguments of the typed command. */
async function offerCommands(text) {
  const mine = ++asked;
  const { commands } = await loadCommands();
  if (mine !== asked) return;
  const named = NAMED.exec(text);
  if (named) {
    const starts = commands.filter(({ name }) => name.startsWith(named[1].toLowerCase()));
    const others = fitting(commands.filter((one) => !starts.includes(one)), named[1]);
    const items = [...starts, ...others].map(asItem);
    return menu.show([{ items }], { empty: gettext("No such command. Press Enter for suggestions.") });
  }
  const [, name, rest] = FOLLOWED.exec(text);
  const command = commands.find((one) => [name, name.toLowerCase()].includes(one.name));
  if (!command?.argument) return menu.hide();
  menu.show([{ items: fittingChoices(command, rest) }], { note: command.choices.length ? "" : command.says });
}

let typing;
async function offerFiles(typed) {
  const mine = ++asked;
  typing?.abort();
  typing = new AbortController();
  const { files: address, resources } = await loadCommands();
  await new Promise((resolve) => { setTimeout(resolve, 100); });
  if (mine !== asked) return;
  const query = new URLSearchParams({ q: typed.replace(/^"/, "") });
  const { files, note } = await getJson(`${address}?${query}`, { signal: typing.signal });
  if (mine !== asked) return;
  const found = fitting(resources, typed).slice(0, MAX_RESOURCES).map((one) => ({ ...one, isCode: true, resource: one.name }));
  const items = files.map((path) => ({ name: path, isCode: true, file: path }));
  menu.show([
    { label: found.length ? gettext("Resources") : "", items: found },
    { label: found.length ? gettext("Files") : "", items },
  ], { note, empty: gettext("No matching files.") });
}

function askAgain() {
  table = null;
  if (menu?.isShown && !menu.isOpen) offer(); // the list has no choices yet
}

function closeMenu() {
  asked += 1;
  menu.hide();
}

/** Show choices for the text before the caret. */
function offer() {
  const text = field.value;
  const file = FILE.exec(text.slice(0, field.selectionStart));
  if (text !== closedFor) closedFor = null;
  let work;
  if (closedFor === null && (NAMED.test(text) || FOLLOWED.test(text))) work = offerCommands(text);
  else if (closedFor === null && file && field.selectionStart === field.selectionEnd) work = offerFiles(file[1]);
  else return closeMenu();
  work.catch((error) => error.name === "AbortError" || menu.hide());
}

if (menu) {
  // This handles keys before the composer sends on Enter and before the chat stops on Esc.
  form.addEventListener("keydown", (event) => {
    if (event.target !== field) return;
    const closes = event.key === "Escape" && menu.isShown;
    if (event.key === "Enter" && !menu.isOpen) closeMenu();
    if (closes) {
      closedFor = field.value;
      closeMenu();
    } else if (!menu.press(event)) return;
    event.preventDefault();
    event.stopPropagation();
  }, true);
  field.addEventListener("input", offer);
  field.addEventListener("click", offer);
  field.addEventListener("blur", closeMenu);
  offer();
}
