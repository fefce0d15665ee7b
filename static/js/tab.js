// Shows the state of the session in the title of the tab and as a dot on its icon.
import { find, findAll } from "./dom.js";

const MARKS = { queued: "…", running: "…", retrying: "…", waiting_approval: "!", done: "●" };
const COLOURS = { "…": "#9aa0b5", "!": "#e8a317", "●": "#2f9e5b" };

const icon = find("link[rel=icon]");
const plain = icon.href;
const svg = fetch(plain).then((answer) => answer.text());
let mark = "";

/** `state` is the run's state, or "done" until the tab is visible. */
export async function show(state) {
  mark = state === "done" && !document.hidden ? "" : MARKS[state] ?? "";
  writeTitle();
  const now = mark;
  const dot = `<circle cx="24" cy="24" r="8" fill="${COLOURS[now]}" stroke="#fff" stroke-width="2"/></svg>`;
  const marked = now && (await svg).replace("</svg>", dot);
  if (now === mark) icon.href = now ? `data:image/svg+xml,${encodeURIComponent(marked)}` : plain;
}

export function rename(title) {
  for (const name of findAll("#title, [aria-current=page] .title")) name.textContent = title;
  document.title = `${title} · Loom Web`;
  writeTitle();
}

function writeTitle() {
  const name = document.title.replace(/^\([…!●]\) /, "");
  document.title = mark ? `(${mark}) ${name}` : name;
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && mark === MARKS.done) show("");
});
