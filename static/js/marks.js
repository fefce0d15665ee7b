// Elements that the browser adds to rows. They depend only on the rows.
import { byId, create, find, findAll, formatDay, fromTemplate, gettext, localise } from "./dom.js";

const MAX_LINES = 60; // lines of about 72 characters
const MIN_CALLS = 4;
const list = byId("rows");
const log = byId("transcript").dataset;
export const opened = new Set();
const marked = new WeakSet();

export const allRows = () => findAll(":scope > .row", list);

function createButton(className, textContent, data) {
  const button = create("button", { type: "button", className, textContent });
  Object.assign(button.dataset, data);
  return button;
}

function mark(row) {
  if (marked.has(row)) return;
  marked.add(row);
  localise(row);
  if (find(".rich", row)) import("./rich.js").then(({ enrich }) => enrich(row));
  const { eventType, turn } = row.dataset;
  if (byId(`acts-${eventType}`)) {
    const acts = fromTemplate(`acts-${eventType}`);
    if (turn) for (const link of findAll("a", acts)) link.href = `${log.url}${link.dataset.to}/${turn}/`;
    else findAll(":not([data-action=copy])[data-action]", acts).forEach((act) => act.remove());
    find(".foot", row).append(acts);
  }
  const text = eventType === "user_message" && find(":scope > .md", row);
  const lines = text && text.textContent.split("\n").reduce((sum, line) => sum + 1 + line.length / 72, 0);
  if (lines > MAX_LINES) {
    row.classList.add("folding");
    text.after(createButton("unfold", gettext("Show all"), { action: "unfold" }));
  }
}

// The rows of a call are 1 started, 2 asked, 3 decided, 4 completed. Last step → steps to show:
const STAY = ["", "1", "2", "13", "4"];

/** Return the rows that a later row of the same call replaces. */
function settledRows(rows) {
  const stay = new Map();
  return new Set([...rows].reverse().filter(({ dataset: { call, step } }) => {
    if (!step) return false;
    if (step === "4" || !stay.has(call)) stay.set(call, STAY[step]);
    const isSettled = !stay.get(call).includes(step);
    if (step === "1") stay.delete(call); // ids can come again
    return isSettled;
  }));
}

/** Return the sequences of tool rows. `opened` has the numbers of unfolded rows. */
export function toolRuns(rows) {
  const settled = settledRows(rows);
  const runs = [[]];
  for (const row of rows) {
    row.classList.toggle("settled", settled.has(row));
    if (settled.has(row)) continue;
    if (row.matches(".row-tool")) runs.at(-1).push(row);
    else runs.push([]);
  }
  return runs.filter((run) => run.length);
}

/** Mark new rows, and update the day lines and groups. */
export function arrange() {
  const rows = allRows();
  const wanted = new Map(rows.map((row) => [row, []]));
  let last = "";
  let floor = Number(log.floor);
  let isBelow = false;
  let read = log.read && Number(log.read) + 1;
  for (const row of rows) {
    mark(row);
    const turn = Number(row.dataset.turn);
    // Its row may not be loaded.
    if (read && turn >= read) {
      if (isBelow || turn === read) wanted.get(row).push(fromTemplate("new-line"));
      read = 0;
    }
    if (floor && turn >= floor) {
      if (isBelow || turn === floor) wanted.get(row).push(fromTemplate("window-line"));
      floor = 0;
    }
    isBelow ||= turn > 0;
    const time = find(".foot > time", row);
    const day = time ? formatDay(new Date(time.dateTime)) : last;
    if (day !== last) wanted.get(row).push(create("p", { className: "day", textContent: last = day }));
  }
  for (const run of toolRuns(rows)) {
    const open = run.length < MIN_CALLS || run.some((row) => opened.has(row.dataset.seq));
    if (run.length >= MIN_CALLS) {
      const button = createButton("group-mark", gettext("%(count)s tool calls", { count: run.length }), { action: "group", first: run[0].dataset.seq });
      button.ariaExpanded = open;
      wanted.get(run[0]).push(button);
    }
    for (const row of run) row.classList.toggle("folded", !open && !("keeps" in row.dataset));
  }
  for (const [row, marks] of wanted) {
    const found = [];
    for (let at = row; (at = at.previousElementSibling) && !at.matches(".row");) found.unshift(at);
    if (found.length === marks.length && marks.every((one, index) => one.isEqualNode(found[index]))) continue;
    found.forEach((one) => one.remove());
    row.before(...marks);
  }
  if (log.rewinds > 0) document.dispatchEvent(new Event("loom:rewound"));
  if (find(".row-tool", list)) document.dispatchEvent(new Event("loom:tools"));
}
