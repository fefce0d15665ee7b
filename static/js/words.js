// Words in the page's language, for modules that are loaded after the page.
import { gettext } from "./dom.js";

const { words } = document.documentElement.dataset;
// Without them the texts are English. An error here would break the importing modules for good.
if (words) await import(words).catch(() => {});

export { gettext };
/** Return a number with thin spaces between the thousands, as the server writes it. */
export const numberText = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, "\u202f");
/** Return the singular or plural text for `count`, which is also %(count)s. */
export const ngettext = (one, many, count, values = {}) =>
  gettext((globalThis.words[one] ?? [one, many])[count === 1 ? 0 : 1], { count, ...values });
