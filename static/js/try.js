// A form of the API's reference: sends what only reads, as whoever is signed in.

const addressOf = (form) => {
  const query = new URLSearchParams();
  let path = form.dataset.try;
  for (const { name, value, dataset } of form.querySelectorAll("input")) {
    if (dataset.place === "path") path = path.replace(`{${name}}`, encodeURIComponent(value));
    else if (value) query.set(name, value);
  }
  return query.size ? `${path}?${query}` : path;
};

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("[data-try]");
  if (!form) return;
  event.preventDefault();
  const shown = form.querySelector("pre");
  shown.hidden = false;
  shown.textContent = "…";
  try {
    const answer = await fetch(addressOf(form), { headers: { Accept: "application/json" } });
    const text = await answer.text();
    const body = answer.headers.get("Content-Type")?.includes("json")
      ? JSON.stringify(JSON.parse(text), null, 2)
      : text;
    shown.textContent = `${answer.status} ${answer.statusText}\n\n${body}`;
  } catch {
    shown.textContent = "The server is not responding.";
  }
});
