// Says while the session is in view, so that its person is not told what they see; and takes
// away the notices of it that this browser shows.
const { watch, token } = document.querySelector("[data-watch]").dataset;
const transcript = document.getElementById("transcript");
const INTERVAL = 5000;
let inView = false;
let said = "";
let timer = 0;

async function closeNotices() {
  const registration = await navigator.serviceWorker?.getRegistration();
  for (const notice of (await registration?.getNotifications()) ?? []) {
    if (notice.data?.url === location.pathname) notice.close();
  }
}

function say(open) {
  const body = new URLSearchParams({ csrfmiddlewaretoken: token, open: open ? "1" : "" });
  fetch(watch, { method: "POST", body, keepalive: true }).catch(() => {});
}

/** At once where something has changed, and every few seconds while something can happen. */
function look() {
  clearTimeout(timer);
  const isOpen = document.visibilityState === "visible";
  const state = isOpen ? transcript.dataset.runState : "";
  if (isOpen || inView) {
    if (state !== said || state !== "idle") say(isOpen);
    if (isOpen && state !== said) closeNotices();
  }
  said = state;
  inView = isOpen;
  if (isOpen && state !== "idle") timer = setTimeout(look, INTERVAL);
}

new MutationObserver(look).observe(transcript, { attributeFilter: ["data-run-state"] });
document.addEventListener("visibilitychange", look);
addEventListener("pagehide", () => inView && say(false));
look();
