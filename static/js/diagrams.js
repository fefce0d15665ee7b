// Diagrams in rows. Each is drawn in its own frame when it comes into view. The frame is not
// trusted: the page accepts only a height within limits from it. Loaded with the first diagram.
import { create, find } from "./dom.js";
import { gettext } from "./words.js";

const MAX_CHARS = 20000; // longer texts are not drawn
const MIN_HEIGHT = 32;
const MAX_HEIGHT = 2400;
const MAX_WAIT_MS = 20000; // limit for drawing
const drawings = new Map(); // window of a frame → its drawing

const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => {
  const { theme } = document.documentElement.dataset;
  return theme === "dark" || (theme !== "light" && dark.matches);
};

function show(block, drawn) {
  block.classList.toggle("drawn", drawn);
  const button = find("[data-action=diagram-source]", block);
  if (button) button.ariaPressed = !drawn;
}

function fail(frame, block) {
  drawings.delete(frame.contentWindow);
  frame.remove();
  show(block, false);
  find("[data-action=diagram-source]", block)?.remove();
  find(".code-lang", block).append(` · ${gettext("cannot be drawn")}`);
}

function start(block) {
  const frame = create("iframe", { src: "/diagram/", title: gettext("Diagram"), referrerPolicy: "no-referrer" });
  frame.sandbox = "allow-scripts";
  const button = create("button", { type: "button", textContent: gettext("Source"), ariaPressed: "true" });
  button.dataset.action = "diagram-source";
  find(".code-lang", block).after(button);
  block.append(frame);
  const wait = setTimeout(() => fail(frame, block), MAX_WAIT_MS);
  drawings.set(frame.contentWindow, { frame, block, wait, text: find("pre", block).textContent });
}

const send = ({ frame, text }) => frame.contentWindow?.postMessage({ text, dark: isDark() }, "*");

addEventListener("message", ({ source, data }) => {
  const drawing = drawings.get(source);
  if (!drawing) return;
  const { frame, block, wait } = drawing;
  if (data?.ready === true) return send(drawing);
  if (data?.failed === true) {
    clearTimeout(wait);
    return fail(frame, block);
  }
  if (!Number.isFinite(data?.height)) return;
  clearTimeout(wait);
  frame.style.height = `${Math.min(MAX_HEIGHT, Math.max(MIN_HEIGHT, Math.ceil(data.height)))}px`;
  if (!drawing.isDrawn) show(block, drawing.isDrawn = true);
});

const drawAgain = () => drawings.forEach(send);
dark.addEventListener("change", drawAgain);
new MutationObserver(drawAgain).observe(document.documentElement, { attributeFilter: ["data-theme"] });

const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    start(target);
  }
});

/** Draw the diagram of a code block when it comes into view. */
export function watch(block) {
  if (find("pre", block).textContent.length <= MAX_CHARS) seen.observe(block);
}

export const toggle = (block) => show(block, !block.classList.contains("drawn"));
