// A field whose text is to be sent to somebody.
import { byId } from "./dom.js";
import { gettext } from "./words.js";

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy]");
  if (!button) return;
  const field = byId(button.dataset.copy);
  field.select();
  try {
    await navigator.clipboard.writeText(field.value);
    button.textContent = gettext("Copied");
  } catch {
    button.textContent = gettext("Selected: press Ctrl+C"); // without TLS there is no clipboard
  }
});
