// Says that a message is longer than the server accepts, until it fits. Loaded with the first one.
import { byId, refuse } from "./dom.js";
import { ngettext, numberText } from "./words.js";

let said = "";

/** `excess()` returns the number of characters over the limit. */
export function refuseLength(excess) {
  if (!said) {
    byId("message").addEventListener("input", () => {
      if (byId("refused").textContent === said && excess() <= 0) refuse();
    });
  }
  const count = excess();
  said = ngettext(
    "The message is %(count)s character too long. At most %(max)s fit.",
    "The message is %(count)s characters too long. At most %(max)s fit.",
    count,
    { count: numberText(count), max: numberText(byId("composer").dataset.max) },
  );
  refuse(said);
}
