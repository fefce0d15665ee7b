// A stored page that is shown without a network. It reloads as soon as the server responds, unless
// the person has typed outside of the composer or a file is not uploaded. The composer's text is
// kept as a draft.
import { localise } from "../js/dom.js";

document.querySelectorAll(".offline-bar").forEach(localise); // a session's page does this only for its own parts
let isWritten = false;
document.addEventListener("input", ({ target }) => { isWritten ||= !target.closest("#composer"); });
const again = async () => {
  const answer = await fetch("/healthz", { cache: "no-store" }).catch(() => null);
  const lacksFile = document.querySelector("#tray :is(progress, button + button)");
  if (answer?.ok && !isWritten && !lacksFile) location.reload();
};
addEventListener("online", again);
setInterval(again, 5000);
