// Uploads into a folder: dropped files, and the progress of an upload.
import { whyRefused, whyUnreadable } from "./upload_errors.js";
import { gettext } from "./words.js";

const TOO_LARGE = gettext("These files are too large for one upload.");
const form = document.querySelector(".upload");
if (form) {
  const input = form.elements.files;
  const said = form.querySelector("[data-upload-said]");
  const progress = form.querySelector("progress");
  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");

  addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (!holdsFiles(event)) return;
    event.preventDefault();
    input.files = event.dataTransfer.files;
    form.requestSubmit();
  });

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const size = [...input.files].reduce((sum, file) => sum + file.size, 0);
    if (size > Number(form.dataset.most)) {
      said.textContent = TOO_LARGE;
      return;
    }
    const request = new XMLHttpRequest();
    request.open("POST", form.action);
    request.setRequestHeader("HX-Request", "true");
    request.upload.addEventListener("progress", (at) => {
      if (at.lengthComputable) progress.value = at.loaded / at.total;
    });
    const fail = async (told) => {
      progress.hidden = true;
      const reasons = told ? [told] : await Promise.all([...input.files].map(whyUnreadable));
      said.textContent = reasons.find(Boolean) ?? gettext("The upload was interrupted. Try again.");
    };
    request.addEventListener("error", () => fail());
    request.addEventListener("load", () => {
      // The reloaded page shows the result of the upload.
      if (request.status === 204) location.reload();
      else if (!show(request.responseText)) fail(whyRefused(request, TOO_LARGE));
    });
    said.textContent = gettext("Uploading…");
    progress.hidden = false;
    request.send(new FormData(form));
  });

  function show(html) {
    const alert = new DOMParser().parseFromString(html, "text/html").querySelector("[role=alert]");
    if (!alert) return false;
    document.querySelectorAll("main > [role=alert]").forEach((old) => old.remove());
    document.querySelector("main > header").after(alert);
    alert.tabIndex = -1;
    alert.focus();
    progress.hidden = true;
    said.textContent = "";
    return true;
  }
}
