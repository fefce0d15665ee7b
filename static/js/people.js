// Shows the other people who have the session open, and who is writing. Loaded with the first one.
import { byId, create, find, findAll } from "./dom.js";
import { gettext } from "./words.js";

const { me } = document.body.dataset;
const AGAIN_MS = 3000; // the server forgets it after five seconds
const MAX_SHOWN = 4;

const list = create("ul", { id: "people", ariaLabel: gettext("Also here") });
list.style.display = "flex";
find(".bar .crumb").before(list);
const line = create("span", { id: "writing" });
find(".status p").after(line);

let connection;
let told = 0;

export function showPeople({ people, count }, socket) {
  connection = socket;
  const others = people.filter(({ id }) => id !== me);
  list.hidden = !others.length;
  list.replaceChildren(...others.slice(0, MAX_SHOWN).map(({ name, may_write: may }) => {
    const title = may ? gettext("%(name)s, can write and approve", { name }) : gettext("%(name)s, can read", { name });
    const mark = create("span", { className: "who", textContent: name.slice(0, 1).toUpperCase(), title });
    mark.role = "img";
    mark.ariaLabel = title;
    const item = create("li", {});
    item.append(mark);
    return item;
  }));
  const more = count - (count - others.length ? 1 : 0) - Math.min(others.length, MAX_SHOWN);
  if (more > 0) list.append(create("li", { textContent: `+${more}` }));
  line.textContent = writingText(others.filter(({ is_writing: is }) => is).map(({ name }) => name));
}

function writingText(names) {
  const [name, other] = names;
  if (names.length > 2) return gettext("%(count)s people are writing", { count: names.length });
  if (other) return gettext("%(name)s and %(other)s are writing", { name, other });
  return name ? gettext("%(name)s is writing", { name }) : "";
}

/** Take back an own message that somebody else has withdrawn. Its text is still in the queue,
 * because the row about the withdrawal arrives before the new queue. */
function takeBack(rows) {
  for (const item of findAll("#queue > li")) {
    const isWithdrawn = ({ event_type: type, html }) => type === "info" && html.includes(`data-withdrawn="${item.dataset.run}"`);
    if (rows.some(isWithdrawn)) import("./refused.js").then(({ putBackQueued }) => putBackQueued(item));
  }
}

/** Others are informed while the field has text and changes. */
byId("message")?.addEventListener("input", ({ target }) => {
  const is = Boolean(target.value.trim());
  if (is && Date.now() - told < AGAIN_MS) return;
  if (!is && !told) return;
  told = is ? Date.now() : 0;
  connection?.send({ type: "typing", is_writing: is });
});
document.addEventListener("loom:frame", ({ detail }) => {
  if (detail.type === "rows") takeBack(detail.rows);
  if (/^(ack|hello)$/.test(detail.type)) told = 0; // the server no longer shows the person as writing
  if (detail.type === "hello") showPeople({ people: [], count: 0 }, connection); // a person who is alone gets no frame
});
