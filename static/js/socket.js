// The connection to a session, which reconnects by itself.
import { fromTemplate, gettext, newId } from "./dom.js";

const REFUSALS = { 4400: "refused", 4401: "signed-out", 4403: "refused", 4404: "gone", 4429: "full" };
export let LOST = gettext("Not connected. Try again in a moment.");

/** `onState` gets open, closed or a refusal. */
export class Socket {
  requests = new Map();
  attempt = 0;

  constructor({ address, onFrame, onState }) {
    Object.assign(this, { address, onFrame, onState });
    const soon = () => document.hidden || this.over || this.nudge();
    addEventListener("online", soon);
    document.addEventListener("visibilitychange", soon);
    this.connect();
  }

  connect() {
    clearTimeout(this.timer);
    const socket = this.line = new WebSocket(this.address());
    socket.onopen = () => {
      this.heard();
      this.onState("open");
    };
    socket.onmessage = ({ data }) => {
      this.heard();
      this.onFrame(JSON.parse(data));
    };
    socket.onclose = ({ code }) => socket === this.line && this.closed(code);
  }

  closed(code) {
    const why = this.over = REFUSALS[code];
    this.onState(why ?? "closed");
    // A retry would not help.
    if (why) LOST = fromTemplate(`line-${why}`).textContent;
    for (const id of this.requests.keys()) this.answer(id, LOST);
    clearTimeout(this.timer);
    const wait = Math.min(30000, 500 * 2 ** this.attempt++) * (0.5 + Math.random());
    if (!this.over) this.timer = setTimeout(() => this.connect(), wait);
  }

  nudge() {
    // A socket that is closing still reports the reason.
    if (this.line.readyState > WebSocket.CLOSING || !this.line.onclose) this.connect();
    else this.ask();
  }

  heard() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), 25000);
  }

  /** Without a pong the connection is dead. */
  ask() {
    if (!this.send({ type: "ping" })) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.line.onclose = null;
      this.line.close();
      this.closed();
    }, 8000);
  }

  send(frame) {
    const open = this.line.readyState === WebSocket.OPEN;
    if (open) this.line.send(JSON.stringify(frame));
    return open;
  }

  /** Send a request when the socket is open. `end` gets the problem, or nothing. */
  request(frame, end) {
    const id = newId();
    const send = () => this.send({ ...frame, client_id: id }) || this.answer(id, LOST);
    this.requests.set(id, end);
    if (this.line.readyState) send();
    else this.line.addEventListener("open", send);
  }

  /** Complete a request. Return false if there is none. */
  answer(id, problem) {
    const end = this.requests.get(id);
    this.requests.delete(id);
    end?.(problem);
    return Boolean(end);
  }
}
