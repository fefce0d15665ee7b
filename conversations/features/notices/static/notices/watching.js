// Says while the session is in view, so that its person is not told what they see; and takes
// away the notices of it that this browser shows.
const { watch, token } = document.querySelector("[data-watch]").dataset;
const transcript = document.getElementById("transcript");
const INTERVAL = 5000;
let said = "";
let timer = 0;

async function closeNotices() {
  const registration = await navigator.serviceWorker?.getRegistration();
  for (const notice of (await registration?.getNotifications()) ?? []) {
    if (notice.data?.url === transcript.dataset.url) notice.close();
  }
}

function say(state) {
  const body = new URLSearchParams({ csrfmiddlewaretoken: token, open: state && "1" });
  fetch(watch, { method: "POST", body, keepalive: true }).catch(() => {});
  said = state;
}

/** At once where something has changed, and every few seconds while something can happen. */
function look() {
  clearTimeout(timer);
  const state = document.hidden ? "" : transcript.dataset.runState;
  const isBusy = state && state !== "idle";
  if (state && state !== said) closeNotices();
  if (isBusy || state !== said) say(state);
  if (isBusy) timer = setTimeout(look, INTERVAL);
}

new MutationObserver(look).observe(transcript, { attributeFilter: ["data-run-state"] });
document.addEventListener("visibilitychange", look);
addEventListener("pagehide", () => said && say(""));
look();
