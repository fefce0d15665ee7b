// A step is sent without leaving the page; whoever has closed the tour finds it closed.
const tour = document.querySelector("[data-tour]");
const field = document.getElementById("message");
const CLOSED = "loom:tour";

try { tour.open = localStorage.getItem(CLOSED) !== "closed"; } catch { /* off */ }
tour.addEventListener("toggle", () => {
  try { localStorage.setItem(CLOSED, tour.open ? "open" : "closed"); } catch { /* off */ }
});

tour.addEventListener("click", (event) => {
  const step = event.target.closest("[name=text]");
  // What is being written stays; the form sends the step by itself then.
  if (!step || field.value.trim()) return;
  event.preventDefault();
  field.value = step.value;
  field.form.requestSubmit();
});
