// Words in the page's language, for modules that come later than it.
import { gettext } from "./dom.js";

const { words } = document.documentElement.dataset;
if (words) await import(words);

export { gettext };
/** The same by a number, which is also %(count)s. */
export const ngettext = (one, many, count, values = {}) =>
  gettext((globalThis.words[one] ?? [one, many])[count === 1 ? 0 : 1], { count, ...values });
