// The palette, in which sessions, commands, workspaces and pages are found by typing. Loaded on
// every page with Ctrl K or Cmd K.
//
// Commands and places are loaded when the palette opens. Sessions are searched on the server while
// the person types: `found` has the last response, and the query to which it belongs. If a chosen
// command needs an argument, it becomes `step`, and the field is emptied for the argument.
import { byId, create, find, findAll } from "./dom.js";
import { Choices, fitting, fittingChoices } from "./choices.js";
import { addStyle } from "./styles.js";
import { gettext } from "./words.js";

const ADDRESS = document.body.dataset.palette;
const inChat = byId("transcript");
const NOTHING = { sessions: [], more: "", query: "" };
let dialog;
let field;
let choices;
let places = [];
let commands = [];
let found = NOTHING;
let onlySessions = false;
let step = null; // the command whose argument is entered
let asked = 0;
let timer = 0;

async function ask(parameters) {
  const response = await fetch(`${ADDRESS}?${new URLSearchParams(parameters)}`, { redirect: "error" });
  if (!response.ok) throw new Error(`status ${response.status}`);
  return response.json();
}

/** Return the parts of the panel, from its tabs. */
const panelParts = () => findAll("#panel .tabs a").map((link) => ({ name: link.textContent, says: gettext("About this session"), link }));

const loadCommands = () => import("./commands.js").then((module) => module.loadCommands());

function build() {
  dialog = create("dialog", { className: "palette", ariaLabel: gettext("Go to") });
  field = create("input", { type: "text", role: "combobox", autocomplete: "off", spellcheck: false });
  field.ariaExpanded = "false";
  field.setAttribute("aria-haspopup", "listbox");
  choices = new Choices(field, { label: gettext("Sessions, commands and pages"), choose });
  dialog.append(field, ...choices.parts);
  document.body.append(dialog);
  field.addEventListener("input", typed);
  dialog.addEventListener("keydown", press);
  dialog.addEventListener("click", ({ target }) => target === dialog && dialog.close()); // a click beside the dialog
  dialog.addEventListener("close", () => {
    clearTimeout(timer);
    asked += 1;
    choices.hide();
  });
}

function press(event) {
  if (event.key === "Escape" && step) {
    askFor(null);
    typed();
  } else if (event.key === "Enter" && step && !step.choices.length) field.value.trim() && give(`/${step.name} ${field.value}`);
  else if (event.key === "Tab") { /* the dialog has one field, so the focus stays in it */ }
  else if (!choices.press(event)) return event.key === "Escape" && event.stopPropagation();
  event.preventDefault();
  event.stopPropagation();
}

function askFor(command) {
  step = command;
  field.value = "";
  const target = onlySessions ? gettext("Go to a session") : gettext("Go to a session, page or command");
  const label = command ? `/${command.name} ${command.argument}` : target;
  field.placeholder = field.ariaLabel = label;
}

function groups() {
  const typedText = field.value.trim();
  if (step) return [{ label: step.says, items: fittingChoices(step, typedText) }];
  // Until the server has responded, only loaded sessions that match are shown, so that Enter does
  // not open an unrelated session.
  const { sessions, more, query } = found;
  const items = query === typedText ? [...sessions, ...(more ? [{ name: gettext("More sessions"), more }] : [])] : fitting(sessions, typedText);
  const group = { label: typedText ? gettext("Sessions") : gettext("Recent sessions"), items };
  if (onlySessions) return [group];
  const wanted = typedText.replace(/^\//, "");
  const named = fitting(commands, wanted);
  const rest = typedText.startsWith("/") ? [] : fitting([...panelParts(), ...places], typedText);
  const both = [{ label: gettext("Commands"), items: named }, { label: gettext("Pages"), items: rest }];
  if (typedText.startsWith("/")) return both;
  // Commands and pages with this name come before sessions that only mention it.
  const isNamed = typedText && [...named, ...rest].some(({ name }) => name.toLowerCase().replace("/", "").startsWith(typedText.toLowerCase()));
  return isNamed ? [...both, group] : [group, ...both];
}

function draw(isKept = false) {
  const isAsking = !step && found.query !== field.value.trim() && !field.value.startsWith("/");
  const none = step && !step.choices.length ? gettext("Press Enter to run the command.") : gettext("No matches.");
  choices.show(groups(), { empty: isAsking ? gettext("Searching…") : none, isKept });
}

/** Load sessions. Return null if others were requested in the meantime. */
async function load(parameters) {
  const mine = ++asked;
  const page = await ask(parameters);
  if (mine !== asked) return null;
  const before = parameters.before ? found.sessions : [];
  found = { sessions: [...before, ...page.sessions], more: page.more, query: parameters.q };
  return page;
}

const search = (parameters) => load(parameters).then((page) => page && draw(true), fail);

function fail() {
  choices.show([], { empty: gettext("The server is not responding. Try again.") });
}

function typed() {
  const q = field.value.trim();
  if (!step) {
    clearTimeout(timer);
    if (!q.startsWith("/")) timer = setTimeout(search, 120, { q });
  }
  draw();
}

function choose(item) {
  if (item.more) return search({ q: found.query, before: item.more });
  if (item.choice) return give(item.choice);
  if (item.command) return command(item.command);
  dialog.close();
  if (item.form) return submit(item.url);
  if (item.link) return item.link.click();
  location.assign(item.url);
}

function command(one) {
  if (one.needs_argument || one.choices.length) {
    askFor(one);
    return draw();
  }
  if (one.name === "resume") {
    onlySessions = true;
    askFor(null);
    return typed();
  }
  give(`/${one.name}`);
}

/** Execute a command after the dialog has returned the focus. */
function give(text) {
  dialog.close();
  import("./commands.js").then(({ run }) => run(text, false));
}

function submit(address) {
  const form = create("form", { method: "post", action: address, hidden: true });
  form.append(find("[name=csrfmiddlewaretoken]").cloneNode());
  document.body.append(form);
  form.submit();
}

export async function open() {
  if (!ADDRESS) return; // nobody is signed in
  if (dialog?.open) return dialog.close();
  if (!dialog) build();
  const { resume, step: wanted } = document.body.dataset; // see commands.js and actions.js
  delete document.body.dataset.resume;
  delete document.body.dataset.step;
  onlySessions = resume !== undefined;
  askFor(null);
  field.value = resume ?? "";
  const opening = load({ q: field.value, all: 1 });
  try {
    const [page, table] = await Promise.all([opening, inChat && loadCommands()]);
    if (!page) return;
    places = page.places;
    commands = (table?.commands ?? []).map((one) => ({ name: `/${one.name}`, says: one.says, isCode: true, command: one }));
    await addStyle(page.style);
  } catch {
    places = commands = [];
    found = NOTHING;
    if (!dialog.open) dialog.showModal();
    return fail();
  }
  const named = commands.find(({ command }) => command.name === wanted);
  if (named) askFor(named.command);
  dialog.showModal();
  field.focus();
  draw();
}
