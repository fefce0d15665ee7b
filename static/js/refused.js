// What the server refused: back in the composer, or sent again. Loaded with the first refusal.
import { byId, refuse } from "./dom.js";
import { setText, takePending } from "./composer.js";

const AGAIN_MS = 2000;
const field = byId("message");
let given = "";
let again = 0;
let isAway = false;

/** Before what was written since, after what came back before. */
export function putBack(text) {
  if (!`${field.value}\n\n`.startsWith(`${given}\n\n`)) given = "";
  const since = field.value.slice(given.length);
  given = `${given}\n\n${text}`.trim();
  setText(`${given}\n\n${since.trim()}`.trim());
}

/** Without a composer the message stays in sight. */
function giveBack(id) {
  if (!field) return;
  const [text, files] = takePending(id);
  if (text) putBack(text);
  if (files) import("./attach.js").then(({ put }) => put(files));
}

/** It may be on disk: it keeps its id, and is said once. */
function sendLater(sendAgain) {
  clearTimeout(again);
  again = setTimeout(sendAgain, AGAIN_MS);
}

export function take({ client_id: id, code, message }, sendAgain) {
  const wasAway = isAway;
  isAway = code === "database_unavailable";
  if (isAway) sendLater(sendAgain);
  else giveBack(id);
  if (!isAway || !wasAway) refuse(message);
}

// Something was stored.
document.addEventListener("loom:frame", ({ detail: { type } }) => {
  if (!isAway || !["ack", "rows"].includes(type)) return;
  isAway = false;
  refuse();
});
