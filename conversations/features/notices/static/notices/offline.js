// A page without a network: loaded again as soon as the server answers, but not under somebody
// who writes in it, nor under a file that has not arrived. What is in the composer is kept as a draft.
import { localise } from "../js/dom.js";

document.querySelectorAll(".offline-bar").forEach(localise); // a chat does that to its own parts only
let isWritten = false;
document.addEventListener("input", ({ target }) => { isWritten ||= !target.closest("#composer"); });
const again = async () => {
  const answer = await fetch("/healthz", { cache: "no-store" }).catch(() => null);
  const lacksFile = document.querySelector("#tray :is(progress, button + button)");
  if (answer?.ok && !isWritten && !lacksFile) location.reload();
};
addEventListener("online", again);
setInterval(again, 5000);
