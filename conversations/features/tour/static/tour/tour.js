// Sends a step without leaving the page, and remembers whether the tour is closed.
const tour = document.querySelector("[data-tour]");
const field = document.getElementById("message");
const CLOSED = "loom:tour";

try { tour.open = localStorage.getItem(CLOSED) !== "closed"; } catch { /* off */ }
tour.addEventListener("toggle", () => {
  try { localStorage.setItem(CLOSED, tour.open ? "open" : "closed"); } catch { /* off */ }
});

tour.addEventListener("click", (event) => {
  const step = event.target.closest("[name=text]");
  // If the composer has text, leave it alone: the step's own form sends the step then.
  if (!step || field.value.trim()) return;
  event.preventDefault();
  field.value = step.value;
  field.form.requestSubmit();
});
