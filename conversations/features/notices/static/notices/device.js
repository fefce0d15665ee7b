// Turns notices on and off for this browser.
const device = document.getElementById("device");
const { key, subscribe, worker } = device.dataset;
const token = device.querySelector("[name=csrfmiddlewaretoken]").value;
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";

function complain(why) {
  const problem = document.getElementById("device-problem");
  problem.textContent = problem.dataset[why];
  problem.hidden = false;
  for (const button of device.querySelectorAll("[data-turn-on]")) button.disabled = why !== "failed";
}

async function turnOn() {
  if ((await Notification.requestPermission()) !== "granted") return complain("denied");
  try {
    await navigator.serviceWorker.register(worker);
    const registration = await navigator.serviceWorker.ready;
    // An existing subscription may be another person's, or made with another key.
    await (await registration.pushManager.getSubscription())?.unsubscribe();
    const made = await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
    const answer = await fetch(subscribe, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRFToken": token },
      body: JSON.stringify({ ...made.toJSON(), zone }),
    });
    if (!answer.ok) throw new Error(answer.status);
  } catch {
    return complain("failed");
  }
  location.reload();
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
