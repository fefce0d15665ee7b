// The rows, up to a cap, and the reader's place among them.
import { byId, find, fromTemplate, gettext, parseHtml } from "./dom.js";
import { allRows, arrange } from "./marks.js";

const END_PX = 48;
const EDGE_PX = 1200;
const log = byId("transcript");
const list = byId("rows");
const pill = byId("jump");
const cap = Number(log.dataset.renderCap) || 600;
let following = true;
let top = 0;
let unseen = 0;
let last = Number(log.dataset.lastSeq) || 0;

const distance = () => log.scrollHeight - log.scrollTop - log.clientHeight;

export const cursor = () => `seq:${last}`;

/** Whether the page ends before the session does. */
export const lacksNewer = () => "newer" in log.dataset;

function showPill(added = 0) {
  unseen = following && !lacksNewer() ? 0 : unseen + added;
  pill.toggleAttribute("hidden", !lacksNewer() && (following || distance() <= END_PX));
  find("span", pill).textContent = unseen ? gettext("%(count)s new", { count: unseen }) : "";
}

function pin() {
  if (following && !lacksNewer()) {
    log.scrollTop = log.scrollHeight;
    top = log.scrollTop;
  }
  showPill();
}

export function follow() {
  following = true;
  pin();
}

/** Keep content that is opened above the end in view. */
export const unfollow = () => { following = false; };

export function firstVisible() {
  const edge = log.getBoundingClientRect().top;
  return allRows().find((row) => row.getBoundingClientRect().bottom > edge);
}

/** Remember the reader's place. Return a function that restores it. */
function holdPlace() {
  const row = firstVisible();
  const before = row?.getBoundingClientRect().top;
  return () => {
    if (row?.isConnected) log.scrollTop += row.getBoundingClientRect().top - before;
    top = log.scrollTop;
    return row;
  };
}

function setControl(side, query) {
  const link = fromTemplate(`load-${side}`);
  const url = `${log.dataset.url}?${query}${log.dataset.all ?? ""}`;
  link.setAttribute("href", url);
  link.setAttribute("hx-get", url);
  byId(side).replaceChildren(link);
  window.htmx?.process(link);
}

function noteEnd() {
  log.toggleAttribute("data-newer", Boolean(find("#newer a")));
  showPill();
}

/** Remove rows beyond the cap, far from the reader or from loaded rows. */
function trim(loaded) {
  const rows = allRows();
  const excess = rows.length - cap;
  if (excess <= 0) return false;
  const above = loaded ? loaded === "newer" : following || rows.indexOf(firstVisible()) > excess + 10;
  const restore = holdPlace();
  const held = list.contains(document.activeElement);
  for (const row of above ? rows.slice(0, excess) : rows.slice(-excess)) row.remove();
  if (held && !list.contains(document.activeElement)) log.focus({ preventScroll: true });
  if (above) setControl("older", `before=${rows[excess].dataset.cursor}`);
  else setControl("newer", `after=${rows.at(-excess - 1).dataset.cursor}`);
  arrange();
  restore();
  noteEnd();
  return true;
}

/** Return false if rows before these are missing. With `after`, gaps are rows that were replaced. */
export function addRows(frames, after) {
  const areAll = after <= last;
  let added = 0;
  for (const { seq, html } of frames) {
    if (seq <= last) continue;
    if (seq > last + 1 && !areAll) break;
    last = seq;
    added += 1;
    if (!lacksNewer()) list.append(...parseHtml(html));
  }
  if (added) arrange();
  showPill(added);
  return !(frames.at(-1)?.seq > last);
}

export function afterFrames() {
  trim();
  pin();
}

/** Update the marks between rows. */
export function arrangeAgain() {
  const restore = holdPlace();
  arrange();
  restore();
  pin();
}

/** Replace rows that left the active path with one row. */
export function replaceRows({ from_seq: from, to_seq: to, html }) {
  const gone = allRows().filter(({ dataset }) => dataset.seq >= from && dataset.seq <= to);
  const restore = holdPlace();
  gone[0]?.before(...parseHtml(html));
  gone.forEach((row) => row.remove());
  last = Math.max(last, to);
  arrange();
  restore();
}

export function start(onComplete) {
  arrange();
  noteEnd();
  const turn = Number(log.dataset.target);
  const shown = turn ? allRows().filter((row) => row.offsetParent) : [];
  const target = shown.find(({ dataset }) => dataset.turn >= turn) ?? shown.at(-1);
  if (target) {
    target.scrollIntoView({ block: "center" });
    import("./reveal.js").then(({ reveal }) => reveal(turn));
  }
  following = !target && !location.search.includes("after=");
  const sizes = new ResizeObserver(pin);
  sizes.observe(log);
  sizes.observe(find(".column"));
  pin();

  let restore;
  let byKeyboard;
  let loaded;
  let edge;
  document.addEventListener("htmx:before:swap", ({ detail: { ctx, tasks } }) => {
    restore = tasks.some(({ target }) => target === list) && holdPlace();
    byKeyboard = document.activeElement.matches(".pager a");
    loaded = ctx.sourceElement.parentElement?.id;
    edge = allRows().at(loaded === "newer" ? -1 : 0);
  });
  document.addEventListener("htmx:after:swap", () => {
    if (!restore) return;
    const lacked = lacksNewer();
    arrange();
    const row = restore();
    noteEnd();
    if (trim(loaded) && (loaded === "older" ? distance() : log.scrollTop) < EDGE_PX) edge.scrollIntoView(); // else the other end would load
    if (byKeyboard && row) {
      row.tabIndex = -1;
      row.focus({ preventScroll: true });
    }
    if (!lacked || lacksNewer()) return;
    last = Math.max(...allRows().map(({ dataset }) => Number(dataset.seq) || 0));
    onComplete();
  });
}

// Scrolling up ends following, and scrolling to the end starts it.
log.addEventListener("scroll", () => {
  const moved = log.scrollTop - top;
  if (moved < -1 && distance() > 1) following = false;
  else if (moved > 0 && distance() <= END_PX) following = true;
  top = log.scrollTop;
  showPill();
});

// An opened element stays under the pointer.
log.addEventListener("click", ({ target }) => {
  if (!target.closest("summary, .group-mark, .unfold")) return;
  following = false;
  setTimeout(() => {
    following = distance() <= END_PX;
    showPill();
  }, 50);
});
