// The sidebar, which is a drawer on narrow pages. Loaded with the first use.
import { find } from "./dom.js";

const root = document.documentElement;
const narrow = matchMedia("(max-width: 759.98px)");
function setDrawer(open) {
  root.toggleAttribute("data-drawer", open);
  find(".main").inert = open;
}
export function toggle() {
  const open = narrow.matches ? !("drawer" in root.dataset) : root.dataset.side === "closed";
  if (narrow.matches) setDrawer(open);
  else {
    root.dataset.side = open ? "open" : "closed";
    try { localStorage.setItem("loom:side", root.dataset.side); } catch { /* storage is off */ }
  }
  find(open ? "#side :is(summary, a)" : ".open-side").focus();
}
narrow.addEventListener("change", () => setDrawer(false));
