// Turns notices on and off for this browser.
const device = document.getElementById("device");
const { key, subscribe, worker } = device.dataset;
const token = device.querySelector("[name=csrfmiddlewaretoken]").value;
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

function complain(why, said) {
  const problem = document.getElementById("device-problem");
  problem.textContent = said || problem.dataset[why];
  problem.hidden = false;
  const mayRetry = ["failed", "refused"].includes(why);
  for (const button of device.querySelectorAll("[data-turn-on]")) button.disabled = !mayRetry;
}

async function turnOn() {
  if ((await Notification.requestPermission()) !== "granted") return complain("denied");
  let made;
  try {
    await navigator.serviceWorker.register(worker);
    const registration = await navigator.serviceWorker.ready;
    // An existing subscription may be another person's, or made with another key.
    await (await registration.pushManager.getSubscription())?.unsubscribe();
    made = await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
  } catch {
    return complain("failed");
  }
  const answer = await fetch(subscribe, {
    method: "POST",
    headers: { "Content-Type": "application/json", "HX-Request": "true", "X-CSRFToken": token },
    body: JSON.stringify({ ...made.toJSON(), zone }),
  }).catch(() => null);
  if (answer?.ok) return location.reload();
  // The server's sentence, but not the error page of a proxy.
  const isSentence = answer?.headers.get("content-type")?.startsWith("text/plain");
  complain("refused", isSentence && (await answer.text()));
}

if (!isSecureContext) complain("insecure");
else if (!("PushManager" in window && "Notification" in window)) complain("unsupported");
else if (Notification.permission === "denied") complain("denied");

device.addEventListener("click", ({ target }) => target.matches("[data-turn-on]") && turnOn());
device.addEventListener("submit", async ({ target }) => {
  if (!target.matches("[data-turn-off]")) return;
  const registration = await navigator.serviceWorker.getRegistration();
  await (await registration?.pushManager.getSubscription())?.unsubscribe();
});
const unsaved = document.querySelector("form:not([data-saved]) [name=zone]");
if (unsaved?.value === "UTC") unsaved.value = zone;
