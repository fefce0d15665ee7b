// Preferences that a button on a page changes. They are saved in the account, or in this browser if
// nobody is signed in. Loaded with the first use.
import { byId, find, findAll } from "./dom.js";
import { gettext } from "./words.js";

const root = document.documentElement;

/** Save a choice. If that fails, it applies to this page only. */
export async function choose(name, value) {
  const { choose: address } = document.body.dataset;
  const token = find("[name=csrfmiddlewaretoken]")?.value;
  if (!address || !token) return;
  const body = new URLSearchParams({ csrfmiddlewaretoken: token, [name]: value });
  await fetch(address, { method: "POST", body, redirect: "error" }).catch(() => {});
}

const LABELS = { auto: gettext("Theme: auto"), light: gettext("Theme: light"), dark: gettext("Theme: dark") };
const THEMES = Object.keys(LABELS);

export function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(root.dataset.theme ?? "auto") + 1) % 3];
  root.dataset.theme = theme;
  for (const button of findAll("[data-theme-toggle]")) button.ariaLabel = button.title = LABELS[theme];
  const field = byId("id_theme");
  if (field) field.value = theme;
  try { localStorage.setItem("loom:theme", theme); } catch { /* storage is off */ }
  choose("theme", theme);
}
