// Words in the page's language, for modules that come later than it.
import { gettext, ngettext } from "./dom.js";

const { words } = document.documentElement.dataset;
if (words) await import(words);

export { gettext, ngettext };
