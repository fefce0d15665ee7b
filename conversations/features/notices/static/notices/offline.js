// A page without a network: loaded again as soon as the server answers.
const again = async () => {
  const answer = await fetch("/healthz", { cache: "no-store" }).catch(() => null);
  if (answer?.ok) location.reload();
};
addEventListener("online", again);
setInterval(again, 5000);
