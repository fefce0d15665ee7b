// Reports that the session is in view, so that no notices of it are sent, and closes those shown.
const { watch, token } = document.querySelector("[data-watch]").dataset;
const transcript = document.getElementById("transcript");
let said = "";
let timer;

async function closeNotices() {
  const registration = await navigator.serviceWorker?.getRegistration();
  for (const notice of (await registration?.getNotifications()) ?? []) {
    if (notice.data?.url === transcript.dataset.url) notice.close();
  }
}

function say(state) {
  const body = new URLSearchParams({ csrfmiddlewaretoken: token, open: state });
  fetch(watch, { method: "POST", body, keepalive: true }).catch(() => {});
  said = state;
}

/** Report after a change of the state, and every few seconds while a run is under way. */
function look() {
  clearTimeout(timer);
  const state = document.hidden ? "" : transcript.dataset.runState;
  const isBusy = state && state !== "idle";
  if (state && state !== said) closeNotices();
  if (isBusy || state !== said) say(state);
  if (isBusy) timer = setTimeout(look, 5000);
}

new MutationObserver(look).observe(transcript, { attributeFilter: ["data-run-state"] });
document.addEventListener("visibilitychange", look);
addEventListener("pagehide", () => said && say(""));
look();
