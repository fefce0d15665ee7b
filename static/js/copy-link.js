// The button that copies the text of a field.
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
    button.textContent = gettext("Selected: press Ctrl+C"); // pages without TLS cannot use the clipboard
  }
});
