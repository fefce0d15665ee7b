// Says that a message is longer than the server accepts, until it fits. Loaded with the first one.
import { byId, refuse } from "./dom.js";
import { ngettext } from "./words.js";

let said = "";

/** `excess()` returns the number of characters over the limit. */
export function refuseLength(excess) {
  if (!said) {
    byId("message").addEventListener("input", () => {
      if (byId("refused").textContent === said && excess() <= 0) refuse();
    });
  }
  said = ngettext(
    "The message is %(count)s character too long. At most %(max)s fit.",
    "The message is %(count)s characters too long. At most %(max)s fit.",
    excess(),
    byId("composer").dataset,
  );
  refuse(said);
}
