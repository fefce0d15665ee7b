// Words in the page's language, for modules that come later than the page: of those that come with
// it the page has the words itself.
import { gettext, ngettext } from "./dom.js";

const { words } = document.documentElement.dataset;
if (words) await import(words);

export { gettext, ngettext };
