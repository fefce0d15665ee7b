// The search in a session, with hits in the panel and steps from hit to hit in the transcript.
// Loaded with the first use, and with a page that a hit has opened.
//
// Hits arrive in pages. `next` is called when they have arrived, with the current hit and the hit
// after it, if they are loaded. For example, a step beyond the last loaded hit sets it to `goOn`.
import { byId, create, find } from "./dom.js";
import { allHits, leaveWords, wordsOf } from "./hits.js";
import { close, load, show } from "./panel.js";
import { reveal } from "./reveal.js";
import { addStyle } from "./styles.js";
import { gettext } from "./words.js";

const body = byId("panel-body");
const opener = byId("find-open");
const sheet = matchMedia("(max-width: 1099.98px)");
const MARK = "#find=";
const MAX_PAGES = 10; // pages of hits to load until the opened hit is found
let current = "";
let next = null;
let typed = "";

const form = () => find("[data-find]", body);

export async function open(link) {
  link.href = opener.href;
  if (form() && !byId("panel").hidden) return focusText();
  const then = next; // the search that has opened this page, if its hits have not arrived
  next = (...hits) => {
    focusText();
    then?.(...hits);
  };
  await show(link);
  if (form()) focusText();
}

function focusText() {
  const text = find("input", form());
  text.focus();
  text.select();
}

function setCurrent(hit) {
  current = hit.dataset.turn;
  for (const other of allHits()) other.ariaCurrent = null;
  hit.ariaCurrent = "true";
  hit.scrollIntoView({ block: "nearest" });
  const hits = allHits();
  find(".at", body)?.remove();
  const count = `${hits.length}${byId("more-hits") ? "+" : ""}`;
  const place = gettext("%(at)s of %(count)s", { at: hits.indexOf(hit) + 1, count });
  find(".count", body)?.append(create("span", { className: "at", textContent: ` · ${place}` }));
}

/** Show a hit in the rows on the page, or open the page around its turn. */
function go(hit) {
  setCurrent(hit);
  if (reveal(hit.dataset.turn, wordsOf(hit))) {
    if (sheet.matches) close();
    return;
  }
  leaveWords(hit);
  const { search } = new URL(opener.href);
  location.assign(`${find("a", hit).href}${MARK}${encodeURIComponent(search)}`);
}

function step(by) {
  const hits = allHits();
  const at = hits.findIndex((hit) => hit.ariaCurrent);
  const hit = hits[at < 0 && by < 0 ? hits.length - 1 : at + by];
  if (hit) go(hit);
  else if (by > 0 && loadMore(goOn)) return;
  else if (hits.length) go(hits.at(by > 0 ? 0 : -1));
}

const goOn = (hit, following) => following && go(following);

/** Load the next page of hits. Return false if there is none. */
function loadMore(then) {
  const more = find("#more-hits a", body);
  if (more) next = then;
  more?.click();
  return Boolean(more);
}

/** Mark the words of the hit that has opened this page, which may be on one of the next pages. */
const lookFor = (pages) => (hit) => {
  if (hit) reveal(current, wordsOf(hit));
  else if (pages) loadMore(lookFor(pages - 1));
};

function submit() {
  const query = new URLSearchParams(new FormData(form()));
  const url = new URL(form().action);
  if (query.get("order") === "best") query.delete("order");
  url.search = query;
  if (url.search === new URL(opener.href).search && allHits().length) step(1);
  else load(url.href, false);
}

body.addEventListener("submit", (event) => {
  if (event.target !== form()) return;
  event.preventDefault();
  next = null;
  submit();
});
body.addEventListener("change", ({ target }) => {
  if (target.matches("[data-find] select")) submit();
});
body.addEventListener("click", (event) => {
  const hit = event.target.closest(".hit");
  const button = event.target.closest("[data-step]");
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (button) step(Number(button.dataset.step));
  const again = event.target.closest(".count a");
  if (again) {
    event.preventDefault();
    load(again.href, false);
  }
  if (!hit) return;
  event.preventDefault();
  go(hit);
});
body.addEventListener("keydown", (event) => {
  if (!event.target.matches("[data-find] input")) return;
  if (event.key === "Escape") close();
  else if (event.key === "Enter" && event.shiftKey) step(-1);
  else return;
  event.preventDefault();
});

// Text that is being typed stays when the hits arrive.
body.addEventListener("htmx:before:swap", () => {
  const text = find("[data-find] input", body);
  typed = text && text.value !== text.defaultValue ? text.value : "";
});
body.addEventListener("htmx:after:swap", () => {
  const part = find("[data-tab=find]", body);
  if (!part) return;
  opener.href = part.dataset.url;
  addStyle(part.dataset.style);
  if (typed) find("input", form()).value = typed;
  const hits = allHits();
  const at = hits.findIndex(({ dataset }) => dataset.turn === current);
  if (hits[at]) setCurrent(hits[at]);
  const then = next;
  next = null;
  then?.(hits[at], hits[at + 1]);
});

/** Continue the search that has opened this page. */
function arrive() {
  const url = new URL(opener.href);
  url.search = decodeURIComponent(location.hash.slice(MARK.length));
  opener.href = url.href;
  current = byId("transcript").dataset.target;
  next = lookFor(MAX_PAGES);
  if (!sheet.matches) show(opener);
}

// The panel needs htmx, which is loaded after the chat.
if (location.hash.startsWith(MARK)) {
  if (window.htmx) arrive();
  else document.addEventListener("DOMContentLoaded", arrive, { once: true });
}
