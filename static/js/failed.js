// What the server refused to do for htmx, in its words. Loaded with the first refusal.
import { gettext } from "./dom.js";

/** Its sentence; not the page of whatever stands before it. */
export const saidBy = (ctx) => ctx?.response?.headers.get("content-type")?.startsWith("text/plain") && ctx.text;

export function tell({ target, detail: { ctx } }, refuse) {
  if (target.closest("#panel")) return; // which says so itself
  target.reset?.(); // the menu of models: to what is stored
  refuse(saidBy(ctx) || gettext("The server could not do this. Try again in a moment."));
}
