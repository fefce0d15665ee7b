// Refused messages, which return to the composer or are sent again. Loaded with the first refusal.
import { byId, find, keep, recall, refuse } from "./dom.js";
import { due, FILES, setText, takePending } from "./composer.js";
import { LOST } from "./socket.js";

const AGAIN_MS = 2000;
/** Reason → the frames after which it does not apply any more. */
const ENDS = { database_unavailable: ["ack", "rows"], queue_full: ["queue"] };
const field = byId("message");
let given = "";
let again = 0;
let ends = [];
let said = "";

/** Put text before text that was written since then and after texts that were put back earlier.
 * Files are remembered at once, because the page may be closed. */
export function putBack(text, files) {
  if (files?.[0]) {
    keep(FILES, [...(recall(FILES) ?? []), ...files]);
    import("./attach.js").then(({ put }) => put(files), () => refuse(LOST));
  }
  if (!text) return;
  if (!`${field.value}\n\n`.startsWith(`${given}\n\n`)) given = "";
  const since = field.value.slice(given.length);
  given = `${given}\n\n${text}`.trim();
  setText(`${given}\n\n${since.trim()}`.trim());
}

/** Put a queued message back for its author. If it has none, the person who withdrew it gets it. */
export function putBackQueued(item) {
  const { author, files } = item.dataset;
  if (!author || author === document.body.dataset.me) putBack(find("span", item).textContent, files?.split(" "));
}

/** Put a message back. Without a composer it stays visible. */
function giveBack(id) {
  if (field) putBack(...takePending(id));
}

/** Send a message again later. It keeps its id, because it may be on disk already. */
function sendLater(id, sendAgain) {
  due.add(id);
  clearTimeout(again);
  again = setTimeout(sendAgain, AGAIN_MS);
}

export function take({ client_id: id, code, message }, sendAgain) {
  const isAway = code === "database_unavailable";
  if (isAway) sendLater(id, sendAgain);
  else giveBack(id);
  // The same message is not shown again, because screen readers would repeat it.
  if (!isAway || byId("refused")?.textContent !== message) refuse(message);
  ends = ENDS[code] ?? [];
  said = message;
}

document.addEventListener("loom:frame", ({ detail: { type } }) => {
  if (!ends.includes(type)) return;
  ends = [];
  if (byId("refused")?.textContent === said) refuse();
});
