// Shows the server's message when an htmx request is refused. Loaded with the first refusal.
import { gettext } from "./words.js";

/** Return the server's sentence, but not the error page of a proxy. */
export const saidBy = (ctx) => ctx?.response?.headers.get("content-type")?.startsWith("text/plain") && ctx.text;

export function tell({ target, detail: { ctx } }, refuse) {
  if (target.closest("#panel")) return; // the panel shows its own message
  target.reset?.(); // set the menu of models to the stored value
  refuse(saidBy(ctx) || gettext("The server could not do this. Try again in a moment."));
}
