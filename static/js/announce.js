// Announces a text to screen readers.
import { byId } from "./dom.js";

export function announce(text) {
  byId("announce").textContent = "";
  setTimeout(() => { byId("announce").textContent = text; }, 50);
}
