// The rows of the page: in order, once each, at most so many, and the reader's place
// among them. The end is followed only while the reader is there.
import { byId, find, fromTemplate, parseHtml } from "./dom.js";
import { allRows, arrange } from "./marks.js";

const NEAR = 48;
const log = byId("transcript");
const list = byId("rows");
const pill = byId("jump");
const cap = Number(log.dataset.renderCap) || 600;
let following = true;
let top = 0;
let unseen = 0;
let last = Number(log.dataset.lastSeq) || 0;
let asked = 0;

const distance = () => log.scrollHeight - log.scrollTop - log.clientHeight;

export const cursor = () => `seq:${last}`;

/** True when the page ends before the session does. */
export const lacksNewer = () => "newer" in log.dataset;

/** The next rows may leave a gap: replaced rows are not sent again. */
export const allowGap = () => { asked = last; };

/** The way back to the end, with the number of rows that came meanwhile. */
function showPill(added = 0) {
  unseen = following && !lacksNewer() ? 0 : unseen + added;
  pill.hidden = !lacksNewer() && (following || distance() <= NEAR);
  find("span", pill).textContent = unseen ? `${unseen} new` : "";
}

function setFollowing(value) {
  following = value;
  showPill();
}

/** To the end, when that is where the reader is. */
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

export function firstVisible() {
  const edge = log.getBoundingClientRect().top;
  return allRows().find((row) => row.getBoundingClientRect().bottom > edge);
}

/** Remember what the reader looks at; the function returned puts it back. */
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
  const url = `${log.dataset.url}?${query}`;
  link.setAttribute("href", url);
  link.setAttribute("hx-get", url);
  byId(side).replaceChildren(link);
  htmx.process(link);
}

function noteEnd() {
  log.toggleAttribute("data-newer", Boolean(find("#newer a")));
  showPill();
}

/** Drop what is beyond the cap at the end that is farther from the reader. */
function trim() {
  const rows = allRows();
  const excess = rows.length - cap;
  if (excess <= 0) return;
  const above = following || rows.indexOf(firstVisible()) > excess + 10;
  const restore = holdPlace();
  for (const row of above ? rows.slice(0, excess) : rows.slice(-excess)) row.remove();
  if (above) setControl("older", `before=${rows[excess].dataset.cursor}`);
  else setControl("newer", `after=${rows.at(-excess - 1).dataset.cursor}`);
  arrange();
  restore();
  noteEnd();
}

/** Take rows from the socket. False when rows before them are missing. */
export function addRows(frames) {
  let added = 0;
  for (const { seq, html } of frames) {
    if (seq <= last) continue;
    if (seq > last + 1 && last !== asked) {
      allowGap();
      break;
    }
    last = seq;
    added += 1;
    if (!lacksNewer()) list.append(...parseHtml(html));
  }
  if (added) arrange();
  showPill(added);
  return frames.at(-1).seq <= last;
}

export function afterFrames() {
  trim();
  pin();
}

/** Rows left the active path; one row stands in their place. */
export function replaceRows({ from_seq: from, to_seq: to, html }) {
  const gone = allRows().filter(({ dataset }) => dataset.seq >= from && dataset.seq <= to);
  const restore = holdPlace();
  gone[0]?.before(...parseHtml(html));
  gone.forEach((row) => row.remove());
  last = Math.max(last, to);
  arrange();
  restore();
}

/** Make the page's rows ready and go where the reader wants to be. */
export function start(onComplete) {
  arrange();
  noteEnd();
  const target = log.dataset.target && find(`#rows > [data-turn="${log.dataset.target}"]`);
  if (target) {
    target.scrollIntoView({ block: "center" });
    target.classList.add("target");
    target.onanimationend = () => target.classList.remove("target");
  }
  setFollowing(!target);
  const sizes = new ResizeObserver(pin);
  sizes.observe(log);
  sizes.observe(find(".column"));
  pin();

  let restore;
  let byKeyboard;
  document.addEventListener("htmx:before:swap", ({ detail }) => {
    restore = detail.tasks.some(({ target }) => target === list) && holdPlace();
    byKeyboard = document.activeElement.matches(".pager a");
  });
  document.addEventListener("htmx:after:swap", () => {
    if (!restore) return;
    const lacked = lacksNewer();
    arrange();
    const row = restore();
    noteEnd();
    trim();
    if (byKeyboard && row) {
      row.tabIndex = -1;
      row.focus({ preventScroll: true });
    }
    if (!lacked || lacksNewer()) return;
    last = Math.max(...allRows().map(({ dataset }) => Number(dataset.seq) || 0));
    allowGap();
    onComplete();
  });
}

log.addEventListener("scroll", () => {
  if (distance() <= NEAR) following = true;
  else if (log.scrollTop < top - 1) following = false;
  top = log.scrollTop;
  showPill();
});

log.addEventListener("wheel", ({ deltaY }) => {
  if (deltaY < 0 && log.scrollTop > 0 && distance() - deltaY > NEAR) setFollowing(false);
}, { passive: true });

// Opening something must not move it away from under the pointer.
log.addEventListener("click", ({ target }) => {
  if (!target.closest("summary, .group-mark, .unfold")) return;
  following = false;
  setTimeout(() => setFollowing(distance() <= NEAR), 50);
});
