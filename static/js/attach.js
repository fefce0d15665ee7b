// Files of the next message. They are chosen, pasted or dropped, uploaded at once, and remembered
// by uuid until the message is sent. Loaded with the first use.
import { announce } from "./announce.js";
import { byId, create, find, findAll, keep, recall, refuse } from "./dom.js";
import { whyRefused, whyUnreadable } from "./upload_errors.js";
import { loadStyle } from "./view.js";
import { gettext, ngettext } from "./words.js";

const { session, url } = byId("transcript").dataset;
const KEY = `files:${session}`;
const form = byId("composer");
const main = byId("main");
const token = () => find("[name=csrfmiddlewaretoken]", form).value;
const at = (uuid, rest = "") => `${url}attachments/${uuid ? `${uuid}/` : ""}${rest}`;
const MAX_UPLOADS = 3;

/** Element → item, in the order of the tray. Uploaded files have a uuid, failed ones a reason. */
const items = new Map();
const tray = create("ul", { id: "tray", className: "tray", ariaLabel: gettext("Attached files") });
const veil = create("div", { className: "veil", hidden: true });
veil.append(create("p", { textContent: gettext("Drop files to attach them") }));
form.prepend(tray);
main.append(veil);
loadStyle();

const isUnderWay = (item) => !item.uuid && !item.reason;
function reasonToWait() {
  const all = [...items.values()];
  if (all.some(isUnderWay)) return gettext("A file is still uploading. Wait for it, then send the message.");
  const failed = all.find(({ reason }) => reason);
  if (failed?.isLost) return gettext("%(name)s is not attached. Try again or remove it.", failed);
  if (failed) return gettext("%(reason)s Remove it from the message, then send.", failed);
}
/** Update or remove the message that says why the message could not be sent. */
function reconsider() {
  const reason = reasonToWait();
  if (!reason || form.waits) refuse(form.waits = reason);
}
const remember = () => {
  const uuids = [...items.values()].flatMap(({ uuid }) => uuid ?? []);
  keep(KEY, uuids[0] && uuids);
};

function sizeText(bytes) {
  if (bytes < 1000) return ngettext("%(count)s byte", "%(count)s bytes", bytes);
  return bytes < 1e6 ? `${Math.round(bytes / 1000)} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function icon(name) {
  const text = `<svg class="icon" aria-hidden="true"><use href="${find("#send use").getAttribute("href").replace("#up", `#${name}`)}"></use></svg>`;
  return create("template", { innerHTML: text }).content.firstChild;
}

function button(name, label, act) {
  const made = create("button", { type: "button", className: "ghost", ariaLabel: label, title: label });
  made.append(icon(name));
  made.addEventListener("click", act);
  return made;
}

function draw(element, item) {
  const words = create("div", { className: "words" });
  words.append(create("b", { textContent: item.name, title: item.name }));
  if (item.reason) words.append(create("p", { className: "error", textContent: item.reason }));
  else if (item.uuid) words.append(create("small", { textContent: item.size ? sizeText(item.size) : "" }));
  else words.append(item.bar ??= create("progress", { max: 1, value: 0, ariaLabel: gettext("Uploading %(name)s", item) }));
  const picture = item.kind === "image" && item.uuid
    ? create("img", { src: at(item.uuid, "thumb/"), alt: "" })
    : icon("file");
  const again = item.isLost ? [button("again", gettext("Try %(name)s again", item), () => retry(element, item))] : [];
  const isFocused = element.contains(document.activeElement);
  element.replaceChildren(picture, words, ...again, button("close", gettext("Remove %(name)s", item), () => remove(element)));
  if (isFocused) element.lastElementChild.focus();
  element.classList.toggle("failed", Boolean(item.reason));
}

function show(item) {
  const element = create("li", {});
  items.set(element, item);
  draw(element, item);
  tray.append(element);
  return element;
}

function settle(element, changes) {
  if (!items.has(element)) { // removed in the meantime
    if (changes.uuid) takeBack(changes.uuid);
    return;
  }
  const item = Object.assign(items.get(element), changes);
  draw(element, item);
  if (item.reason) element.scrollIntoView({ block: "nearest" }); // the tray may scroll
  remember();
  announce(item.reason ?? gettext("%(name)s is attached", item));
  reconsider();
  startWaiting();
}

const fail = (element, reason, isLost = false) => settle(element, { reason, isLost });

function retry(element, item) {
  Object.assign(item, { reason: undefined, isLost: false, bar: undefined, request: undefined });
  draw(element, item);
  startWaiting();
}

function takeBack(uuid) {
  fetch(at(uuid, "remove/"), { method: "POST", headers: { "X-CSRFToken": token() } }).catch(() => {});
}

function remove(element) {
  const { uuid, request, name } = items.get(element);
  const next = element.nextElementSibling ?? element.previousElementSibling;
  items.delete(element);
  element.remove();
  request?.abort();
  if (uuid) takeBack(uuid);
  remember();
  reconsider();
  announce(gettext("%(name)s is removed", { name }));
  (next ? find("button:last-child", next) : byId("message")).focus();
  startWaiting();
}

function upload(element, item) {
  const request = item.request = new XMLHttpRequest();
  const data = new FormData();
  if (item.resource) data.append("resource", item.resource);
  else data.append("files", item.file, item.name);
  request.upload.onprogress = ({ loaded, total }) => { item.bar.value = loaded / total; };
  request.onerror = async () => {
    const reason = item.file && (await whyUnreadable(item.file));
    fail(element, reason ?? gettext("%(name)s was not uploaded because the connection was lost.", item), !reason);
  };
  request.onload = () => {
    let answer;
    let rest = [];
    try { [answer, ...rest] = JSON.parse(request.response).files; } catch { /* an HTML page: signed out, or refused */ }
    for (const { attachment } of rest) if (attachment) show(attachment);
    const tooLarge = gettext("%(name)s is too large for this server.", item);
    const reason = whyRefused(request, tooLarge);
    if (answer?.attachment) settle(element, answer.attachment);
    else if (answer) fail(element, answer.reason, answer.code === "storage_full");
    else if (reason === tooLarge) fail(element, reason);
    else if (reason) fail(element, gettext("%(name)s was not uploaded. %(reason)s", { name: item.name, reason }), true);
    else if (item.resource) fail(element, gettext("%(name)s could not be read from its tool server.", item), true);
    else fail(element, gettext("%(name)s was not uploaded. Sign in again in another tab, then try again.", item), true);
  };
  request.open("POST", at(""));
  request.setRequestHeader("HX-Request", "true"); // errors are sentences instead of pages
  request.setRequestHeader("X-CSRFToken", token());
  request.send(data);
}

/** Upload waiting files, at most MAX_UPLOADS at a time. */
function startWaiting() {
  const under = [...items].filter(([, item]) => isUnderWay(item));
  const free = MAX_UPLOADS - under.filter(([, item]) => item.request).length;
  under.filter(([, item]) => !item.request).slice(0, Math.max(0, free)).forEach((pair) => upload(...pair));
}

export function add(files) {
  const { files: most, bytes } = form.dataset;
  for (const file of files) {
    const name = file.name || "file";
    const element = show({ file, name, size: file.size });
    const count = [...items.values()].filter((item) => !item.reason).length;
    if (count > most) {
      fail(element, ngettext(
        "%(name)s was left out: at most %(count)s file can be attached to a message.",
        "%(name)s was left out: at most %(count)s files can be attached to a message.",
        Number(most),
        { name },
      ));
    } else if (file.size > bytes) {
      const sizes = { name, size: sizeText(file.size), most: sizeText(Number(bytes)) };
      fail(element, gettext("%(name)s is too large (%(size)s). The limit is %(most)s.", sizes));
    }
  }
  startWaiting();
  byId("message").focus();
}

/** Attach a resource of a tool server, named ``server:uri``. */
export function addResource(resource) {
  show({ resource, name: resource, size: 0 });
  startWaiting();
}

/** Attach files that are on the server already, even if it cannot describe them now. */
export function put(uuids) {
  const known = new Set([...items.values()].map(({ uuid }) => uuid));
  const added = uuids.filter((uuid) => !known.has(uuid)).map((uuid) => [uuid, show({ uuid, name: "…" })]);
  remember();
  if (added[0]) describe(added);
}

async function describe(added) {
  const query = added.map(([uuid]) => `uuid=${uuid}`).join("&");
  const response = await fetch(`${at("")}?${query}`).catch(() => null);
  if (!response || response.status >= 500) return setTimeout(() => describe(added), 3000);
  if (!response.ok) return;
  const told = new Map((await response.json()).files.map((file) => [file.uuid, file]));
  for (const [uuid, element] of added) {
    const item = items.get(element);
    if (!item) continue; // removed or sent in the meantime
    if (told.has(uuid)) draw(element, Object.assign(item, told.get(uuid)));
    else {
      items.delete(element);
      element.remove();
    }
  }
  remember();
}

export function choose() {
  const field = create("input", { type: "file", multiple: true });
  field.addEventListener("change", () => add(field.files));
  field.click();
}

let hiding = 0;
/** Show the drop zone. This is called repeatedly while files are dragged over the page. */
function hover() {
  veil.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { veil.hidden = true; }, 500);
}

export function take(kind, files) {
  if (kind === "dragover") return hover();
  veil.hidden = true;
  add(files);
}

/** Return the uuids for composer.js, and set the reason why the message has to wait. */
form.takeFiles = () => {
  refuse(form.waits = reasonToWait());
  if (form.waits) return;
  const uuids = [...items.values()].flatMap(({ uuid }) => uuid ?? []);
  items.clear();
  tray.replaceChildren();
  remember();
  return uuids;
};

put(recall(KEY) ?? []);
for (const box of findAll("[name=attachments]:checked", form)) put([box.value]);
