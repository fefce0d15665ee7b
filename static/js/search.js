// The search page: times of what is loaded later, and a word when that fails.
import { byId, create, find, findAll, localise } from "./dom.js";

const results = byId("found");

document.addEventListener("htmx:after:swap", () => localise(results));

document.addEventListener("htmx:error", fail);
document.addEventListener("htmx:response:error", fail);

function fail() {
  const more = byId("more-hits");
  if (!more || find("[role=alert]", results)) return;
  more.before(create("p", { className: "error", role: "alert", textContent: "The next results could not be loaded. Try it again." }));
}
