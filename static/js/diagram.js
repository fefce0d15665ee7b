// Draws a diagram in a frame without an origin (see conversations/web/diagrams.py). The page sends
// the text and receives the height of the drawing, or a message that drawing failed.
import mermaid from "../vendor/mermaid-12.3.0/mermaid.esm.min.mjs";

const tell = (message) => parent.postMessage(message, "*"); // this frame cannot know the page's origin

// Options that the text of a diagram must not set.
const secure = ["secure", "securityLevel", "startOnLoad", "maxTextSize", "suppressErrorRendering",
  "maxEdges", "dompurifyConfig", "themeCSS", "fontFamily", "layout"];

let drawn = 0;

async function draw({ text, dark }) {
  document.documentElement.style.colorScheme = dark ? "dark" : "light";
  mermaid.initialize({
    startOnLoad: false, securityLevel: "strict", suppressErrorRendering: true, secure,
    layout: "dagre", look: "classic", theme: dark ? "dark" : "default", fontFamily: "system-ui, sans-serif", maxTextSize: 20000, maxEdges: 500,
  });
  try {
    const { svg } = await mermaid.render(`drawing-${drawn += 1}`, text);
    document.body.innerHTML = svg;
    tell({ height: document.body.scrollHeight });
  } catch {
    document.body.replaceChildren();
    tell({ failed: true });
  }
}

let last = Promise.resolve();
addEventListener("message", ({ source, data }) => {
  if (source === parent) last = last.then(() => draw(data));
});
addEventListener("resize", () => document.body.firstChild && tell({ height: document.body.scrollHeight }));
tell({ ready: true });
