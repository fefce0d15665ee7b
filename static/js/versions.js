// Versions of a message or an answer: shows which version a row is, and the other versions. Loaded
// if something was edited or regenerated.
import { byId, create, find, findAll, localise, parseHtml, refuse } from "./dom.js";
import { allRows } from "./marks.js";
import { unfollow } from "./transcript.js";
import { gettext } from "./words.js";

const { dataset } = byId("transcript");
const list = byId("rows");
document.head.append(find("link", byId("editor").content).cloneNode());
let known = { versions: [] };
let loaded = "";
let last = 0;
let asked;

const versionsOf = (turn) => known.versions.find((turns) => turns.includes(turn));
const isShown = (turn) => Boolean(find(`:scope > .row[data-turn="${turn}"]:not([data-event-type=turn_separator])`, list));

function control(turns, turn) {
  const at = turns.indexOf(turn);
  const step = (by, name, sign) => {
    const to = at + by;
    const button = create("button", { type: "button", textContent: sign, ariaLabel: name, title: name });
    button.disabled = !turns[to];
    button.addEventListener("click", () => show(turns, turns[to], by > 0));
    return button;
  };
  const place = create("p", { className: "versions", role: "group", ariaLabel: gettext("Versions") });
  place.append(step(-1, gettext("Earlier version"), "‹"), `${at + 1}/${turns.length}`, step(1, gettext("Later version"), "›"));
  return place;
}

export function close() {
  const section = byId("version");
  if (section?.contains(document.activeElement)) byId("transcript").focus({ preventScroll: true });
  section?.remove();
  const row = find("[data-apart]", list);
  row?.removeAttribute("data-apart");
  return row;
}

async function show(turns, turn, isLater) {
  const current = turns.find(isShown);
  let section;
  if (turn !== current) {
    const response = await fetch(`${dataset.url}branches/${turn}/`, { headers: { "HX-Request": "true" } }).catch(() => ({}));
    if (!response.ok) return refuse(gettext("The version could not be loaded. Try again."));
    [section] = parseHtml(await response.text());
  }
  const row = close() ?? find(`:scope > .row[data-turn="${current}"]`, list);
  if (section) {
    unfollow();
    row.setAttribute("data-apart", "");
    list.after(section);
    localise(section);
    const rich = findAll(".rich", section);
    if (rich[0]) import("./rich.js").then(({ enrich }) => rich.forEach((one) => enrich(one.closest(".row"))));
    const which = gettext("Version %(at)s of %(count)s.", { at: turns.indexOf(turn) + 1, count: turns.length });
    find("form p", section).prepend(`${which} `);
    find(".row", section)?.append(control(turns, turn));
  }
  const shown = section ?? row;
  const button = findAll(".versions button", shown)[isLater ? 1 : 0];
  (button.disabled ? find(".versions button:enabled", shown) : button).focus({ preventScroll: true });
  // Scroll a long version to its head, which has the buttons.
  shown.scrollIntoView({ block: section ? "start" : "nearest" });
}

// A new message continues the conversation, so the shown version is closed.
new MutationObserver(close).observe(byId("pending"), { childList: true });

async function load() {
  const response = await fetch(`${dataset.url}versions/`).catch(() => ({}));
  return response.ok ? response.json() : known;
}

/** Show at rows which version they are. */
export async function markVersions() {
  const rows = allRows();
  const newest = Math.max(0, ...rows.map((row) => Number(row.dataset.turn) || 0));
  if (loaded !== dataset.rewinds) close(); // the row that it is a version of may be gone
  if (loaded !== dataset.rewinds || (known.is_due && newest > last)) {
    loaded = dataset.rewinds;
    last = newest;
    const mine = asked = load();
    const answer = await mine;
    if (mine !== asked) return; // another request was made in the meantime
    known = answer;
    return markVersions(); // for the rows that exist by now
  }
  let before = 0;
  for (const row of rows) {
    const turn = Number(row.dataset.turn);
    const turns = turn !== before && versionsOf(turn);
    before = turn || before;
    const wanted = turns ? control(turns, turn) : null;
    const shown = find(":scope > .versions", row);
    if (wanted?.textContent === shown?.textContent) continue;
    shown?.remove();
    row.append(wanted ?? "");
  }
}
