// The search page: shows a message if the next results cannot be loaded.
import "./hits.js";
import { byId, create, find } from "./dom.js";
import { gettext } from "./words.js";

function fail() {
  const more = byId("more-hits");
  if (!more || find("#found .error")) return;
  const textContent = gettext("The next results could not be loaded. Try again.");
  const error = create("p", { className: "error", role: "alert", textContent });
  more.before(error);
  document.addEventListener("htmx:after:swap", () => error.remove(), { once: true });
}
document.addEventListener("htmx:error", fail);
document.addEventListener("htmx:response:error", fail);
