// The panel beside the transcript. It is a column, or a sheet if there is no room. Every part of it
// is also a page with its own URL. Loaded with its first opening.
import { announce } from "./announce.js";
import { byId, find, findAll, fromTemplate, localise } from "./dom.js";
import { saidBy } from "./failed.js";
import { addStyle } from "./styles.js";

const root = document.documentElement;
const panel = byId("panel");
const body = byId("panel-body");
const button = byId("panel-open");
const sheet = matchMedia("(max-width: 1099.98px)");
let address = "";
let opener = button;
let wantsFocus = false;
let isStale = false;
let timer = 0;
let isLoading = false;

const styled = addStyle(panel.dataset.style);

/** Update the layout. While a sheet covers the page, the rest of the page is inert. */
function lay() {
  const covers = !panel.hidden && sheet.matches;
  root.toggleAttribute("data-panel", !panel.hidden);
  button.ariaExpanded = !panel.hidden;
  panel.role = covers ? "dialog" : "complementary";
  panel.ariaModal = covers ? "true" : null;
  byId("side").inert = covers;
  if (!("drawer" in root.dataset)) byId("main").inert = covers;
}
sheet.addEventListener("change", lay);
matchMedia("(max-width: 759.98px)").addEventListener("change", () => setTimeout(lay));

/** Load a part: with ``focus`` a different one, and without it an update of the current one. */
export function load(url, focus) {
  address = url;
  wantsFocus = focus;
  isStale = false;
  if (!body.firstElementChild) body.append(fromTemplate("panel-loading"));
  // A new part replaces one that is loading. A submitted change is not aborted. The new part waits
  // for it, because its late response would otherwise replace the part.
  if (isLoading) window.htmx.trigger(body, "htmx:abort");
  window.htmx.ajax("GET", url, { source: body, target: body, swap: focus ? "innerHTML" : "innerMorph" });
}

/** Show the page of a link in the panel. The button in the bar also closes the panel. */
export async function show(link) {
  if (link === button && !panel.hidden) return close();
  if (!panel.contains(link)) opener = link;
  link.closest(".menu")?.removeAttribute("open");
  await styled;
  panel.hidden = false;
  lay();
  load(link.href, true);
}

export const again = () => load(address, true);

export function close() {
  panel.hidden = true;
  lay();
  (opener.isConnected && opener.checkVisibility() ? opener : button).focus();
}

function focusTitle() {
  wantsFocus = false;
  (find("[autofocus]", body) ?? find("h2", body))?.focus();
}

body.addEventListener("htmx:before:request", ({ target }) => {
  body.ariaBusy = "true";
  if (target === body) isLoading = true;
});
body.addEventListener("htmx:finally:request", ({ target }) => {
  body.ariaBusy = null;
  if (target === body) isLoading = false;
});
// Text that is being written in an item is restored when its part is shown again.
const written = new Map();
function keepWritten() {
  for (const { id, value, defaultValue } of findAll("[data-edit][open] textarea", body)) {
    if (value !== defaultValue) written.set(id, value);
  }
}
function putBack() {
  for (const [id, value] of written) {
    const field = byId(id);
    if (!field || !written.delete(id)) continue;
    field.value = value;
    field.closest("[data-edit]").open = true;
  }
}

/** Show a failed request without losing text that is being written. */
function fail({ detail: { ctx } }) {
  if ([400, 409, 413].includes(ctx?.response?.status)) return; // the form says what is wrong
  const notice = fromTemplate("panel-failed");
  const said = saidBy(ctx);
  if (said) find("p", notice).textContent = said;
  find(":scope > .notice", body)?.remove();
  if (ctx?.request.method === "POST") return body.prepend(notice);
  keepWritten();
  body.replaceChildren(notice);
}
body.addEventListener("htmx:response:error", fail);
body.addEventListener("htmx:error", fail);
// Unfolded items and messages are kept when the same part is loaded again.
let before = {};
body.addEventListener("htmx:before:swap", () => {
  if (wantsFocus) keepWritten();
  const ids = findAll("details[open][id]", body).map(({ id }) => id);
  const notice = find("[role=status].notice", body)?.cloneNode(true);
  before = { url: find("[data-url]", body)?.dataset.url, ids, notice };
});

body.addEventListener("htmx:after:swap", () => {
  const part = find("[data-url]", body);
  if (!part) return;
  const { url, tab, said } = part.dataset;
  if (url === before.url) {
    for (const id of before.ids) byId(id)?.setAttribute("open", "");
    if (before.notice && !wantsFocus && !find(".notice", body)) find("h2", body)?.after(before.notice);
  }
  address = byId("panel-page").href = url;
  for (const link of findAll(".tabs a", panel)) link.ariaCurrent = link.dataset.tab === tab ? "page" : null;
  localise(body);
  putBack();
  if (said) announce(said);
  if (wantsFocus) body.scrollTop = 0;
  if (wantsFocus || document.activeElement === document.body) focusTitle();
});

// Update the part, but not while text is being written in it.
function refresh() {
  isStale = true;
  clearTimeout(timer);
  timer = setTimeout(() => {
    if (isStale && !panel.hidden && !find("[data-edit][open]", body)) load(address, false);
  }, 250);
}
body.addEventListener("click", (event) => {
  const { target } = event;
  if (target.matches("[data-close-edit]")) {
    const edit = target.closest("[data-edit]");
    edit.open = false;
    find("form", edit).reset();
    find("summary", edit).focus();
  }
  const turn = target.closest("[data-jump]")?.dataset.jump;
  const row = turn && !event.ctrlKey && !event.metaKey && find(`#rows > [data-turn="${turn}"]`);
  if (row) jump(row, event);
});

/** Go to a turn that is on the page, without loading another page. */
function jump(row, event) {
  event.preventDefault();
  if (sheet.matches) close();
  row.tabIndex = -1;
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "center" });
  row.classList.add("target");
  row.onanimationend = () => row.classList.remove("target");
}

body.addEventListener("toggle", ({ target }) => {
  if (!target.matches("[data-edit]")) return;
  if (target.open) find("textarea, input:not([type=hidden]), button:not([type])", target)?.focus();
  else if (isStale) refresh();
}, true);
document.addEventListener("loom:frame", ({ detail: { type } }) => {
  if (type === find("[data-follows]", body)?.dataset.follows) refresh();
});

// This handles Esc before the chat stops on it.
document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (key !== "Escape" || panel.hidden || target.matches("dialog *, [type=search]")) return;
  if (!sheet.matches && !panel.contains(target)) return;
  event.preventDefault();
  const edit = target.closest("[data-edit][open]");
  if (!edit) return close();
  edit.open = false;
  find("summary", edit).focus();
}, true);

// A click beside the sheet closes it.
find(".app").addEventListener("click", ({ target, currentTarget }) => {
  if (target === currentTarget && sheet.matches && !panel.hidden) close();
});
