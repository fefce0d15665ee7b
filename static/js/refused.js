// What the server refused: back in the composer, or sent again. Loaded with the first refusal.
import { byId, find, keep, recall, refuse } from "./dom.js";
import { due, FILES, setText, takePending } from "./composer.js";
import { LOST } from "./socket.js";

const AGAIN_MS = 2000;
/** The frames that say that a reason is none any more. */
const ENDS = { database_unavailable: ["ack", "rows"], queue_full: ["queue"] };
const field = byId("message");
let given = "";
let again = 0;
let ends = [];
let said = "";

/** Before what was written since, after what came back before. Files are kept at once: the page may go. */
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

/** A queued message, which its author alone gets back. Whose is nobody's goes to who withdrew it. */
export function putBackQueued(item) {
  const { author, files } = item.dataset;
  if (!author || author === document.body.dataset.me) putBack(find("span", item).textContent, files?.split(" "));
}

/** Without a composer the message stays in sight. */
function giveBack(id) {
  if (field) putBack(...takePending(id));
}

/** It may be on disk: it keeps its id, and is said once. What is said before goes behind it. */
function sendLater(id, sendAgain) {
  due.add(id);
  clearTimeout(again);
  again = setTimeout(sendAgain, AGAIN_MS);
}

export function take({ client_id: id, code, message }, sendAgain) {
  const isAway = code === "database_unavailable";
  if (isAway) sendLater(id, sendAgain);
  else giveBack(id);
  // Not each time: it would be read out again.
  if (!isAway || byId("refused")?.textContent !== message) refuse(message);
  ends = ENDS[code] ?? [];
  said = message;
}

document.addEventListener("loom:frame", ({ detail: { type } }) => {
  if (!ends.includes(type)) return;
  ends = [];
  if (byId("refused")?.textContent === said) refuse();
});
