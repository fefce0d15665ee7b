// Opens an attachment of a row. An image is shown large above the page, and other files are saved.
// Loaded with the first use.
import { byId, create, find } from "./dom.js";
import { addStyle } from "./styles.js";
import { gettext } from "./words.js";

export const loadStyle = () => addStyle(byId("transcript").dataset.filesStyle);

export function view(link) {
  const small = find("img", link);
  if (!small) return location.assign(link.href);
  loadStyle();
  const dialog = create("dialog", { className: "viewer", ariaLabel: link.title });
  const bar = create("div", { className: "line" });
  const close = create("button", { type: "button", className: "btn", textContent: gettext("Close"), autofocus: true });
  const image = create("img", { src: link.href, alt: small.alt });
  bar.append(
    create("b", { textContent: link.title }),
    create("a", { className: "btn", href: link.href, download: link.title, textContent: gettext("Download") }),
    close,
  );
  dialog.append(bar, image);
  const end = () => dialog.close();
  close.addEventListener("click", end);
  image.addEventListener("click", end);
  dialog.addEventListener("close", () => {
    dialog.remove();
    link.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
}
