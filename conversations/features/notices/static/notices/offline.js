// A page without a network: loaded again as soon as the server answers, but not under somebody
// who writes in it. What is in the composer is kept as a draft.
let isWritten = false;
document.addEventListener("input", ({ target }) => { isWritten ||= !target.closest("#composer"); });
const again = async () => {
  const answer = await fetch("/healthz", { cache: "no-store" }).catch(() => null);
  if (answer?.ok && !isWritten) location.reload();
};
addEventListener("online", again);
setInterval(again, 5000);
