export const byId = (id) => document.getElementById(id);
export const find = (selector, root = document) => root.querySelector(selector);
export const findAll = (selector, root = document) => [...root.querySelectorAll(selector)];
export const create = (tag, properties) => Object.assign(document.createElement(tag), properties);
export const fromTemplate = (id) => byId(id).content.firstElementChild.cloneNode(true);
export const parseHtml = (html) => [...create("template", { innerHTML: html }).content.children];

// Until this is set, it is the element with this id.
globalThis.words = JSON.parse(byId("words")?.textContent ?? "{}");
/** Return the text in the page's language, with `values` for its %(name)s. */
export const gettext = (text, values = {}) => (globalThis.words[text] ?? text).replace(/%\((\w+)\)s/g, (_, name) => values[name]);

/** crypto.randomUUID needs TLS. */
export const newId = () => `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;

/** Show a problem above the composer, or hide it. */
export const refuse = (text = "") => Object.assign(byId("refused") ?? {}, { hidden: !text, textContent: text });

const { lang, dataset } = document.documentElement;
const { dates = navigator.language.startsWith(lang) ? undefined : lang, clock: hourCycle = "h23", times } = dataset;
const format = (options) => new Intl.DateTimeFormat(dates, options).format;
const clock = format({ hour: "2-digit", minute: "2-digit", hourCycle });
const brief = format({ dateStyle: "short", timeStyle: "short", hourCycle });
const exact = format({ dateStyle: "full", timeStyle: "medium", hourCycle });
const ago = new Intl.RelativeTimeFormat(dates, { numeric: "auto", style: "short" });
export const formatDay = format({ dateStyle: "full" });

function relative(moment) {
  let amount = (moment - Date.now()) / 60000;
  for (const [unit, size] of [["minute", 60], ["hour", 24], ["day", 7], ["week", 1e9]]) {
    if (Math.abs(amount) < size) return ago.format(Math.trunc(amount), unit);
    amount /= size;
  }
}

/** Show times in the reader's zone. */
export function localise(root) {
  for (const element of findAll("time", root)) {
    const moment = new Date(element.dateTime);
    const how = element.dataset.relative;
    element.title = exact(moment);
    element.textContent = (how == null ? clock : how || times ? brief : relative)(moment);
  }
}

/** Storage by person. Pending messages outlive their tab. */
const own = `loom:${document.body.dataset.me}:`;
const store = (name) => (/^pending/.test(name) ? localStorage : sessionStorage);
export function recall(name) {
  try { return JSON.parse(store(name).getItem(own + name)); } catch { return null; }
}
export function keep(name, value) {
  try {
    if (value && !isOver) store(name).setItem(own + name, JSON.stringify(value));
    else store(name).removeItem(own + name);
  } catch { /* off or full */ }
}
export let isOver;
// Set by signed-out.js.
addEventListener("storage", ({ key }) => {
  if (key === "loom:out") isOver = !sessionStorage.clear();
});
