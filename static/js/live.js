// The WebSocket of one job: nothing missed, nothing twice.
//
// The server first sends what came after `after`, then new events as they are stored. After a cut the client connects
// again with the last sequence number it has seen. Frames: {events: [{seq, type, time, payload}], job: {...}, last_seq}.
// A network that dies closes nothing: the server says {alive: true} every 30 seconds, and a socket that says nothing for
// SILENCE_MS is given up.

const FIRST_DELAY_MS = 400;
const LONGEST_DELAY_MS = 15_000;
const OFFLINE_AFTER_FAILURES = 4;
const TOO_MANY_CODE = 4429; // too many pages are open: not before others were closed
const TOO_MANY_DELAY_MS = 30_000;
const CONNECT_MS = 20_000;
const SILENCE_MS = 75_000;
const FINAL_CODES = new Set([4401, 4404]); // signed out, not found: trying again would not help

/** Full jitter: many clients that lost one server do not come back all at once. */
export function backoff(failures, random = Math.random) {
  return random() * Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** failures);
}

/** Dispatches `frame` (detail: {events, job}) and `state` (detail: "connecting" | "live" | "reconnecting" | "waiting"
 * (too many are open) | "offline" | "closed"); the document hears of each change, and of each next try, as `live:state` (detail: {state, retryAt}). */
export class LiveConnection extends EventTarget {
  #socket = null;
  #failures = 0;
  #timer = null;
  #watch = null;
  #stopped = false;

  constructor(path, after = 0) {
    super();
    this.path = path;
    this.lastSeq = after;
    this.state = "connecting";
    addEventListener("online", () => this.#reconnect());
    addEventListener("offline", () => this.#setState("offline"));
    document.addEventListener("visibilitychange", () => document.hidden || this.#retryNow());
  }

  open() {
    this.#timer = null;
    const address = new URL(this.path, location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    address.searchParams.set("after", this.lastSeq);
    const socket = new WebSocket(address);
    this.#socket = socket;
    this.#expect(socket, CONNECT_MS);
    socket.addEventListener("open", () => {
      if (socket !== this.#socket) return;
      this.#failures = 0;
      this.#expect(socket, SILENCE_MS);
      this.#setState("live");
    });
    socket.addEventListener("message", (message) => {
      if (socket !== this.#socket) return;
      this.#expect(socket, SILENCE_MS);
      const frame = JSON.parse(message.data);
      if (!frame.alive) this.#receive(frame);
    });
    socket.addEventListener("close", ({ code }) => {
      if (socket === this.#socket && FINAL_CODES.has(code)) this.close();
      else this.#lost(socket, code === TOO_MANY_CODE);
    });
  }

  /** No further events will come: close and stay closed. */
  close() {
    this.#stopped = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#watch);
    this.#socket?.close();
    this.#setState("closed");
  }

  /** Whatever comes of the socket within the time; else it is lost. */
  #expect(socket, milliseconds) {
    clearTimeout(this.#watch);
    this.#watch = setTimeout(() => {
      this.#lost(socket);
      socket.close();
    }, milliseconds);
  }

  #receive(frame) {
    const events = (frame.events ?? []).filter((event) => event.seq > this.lastSeq);
    this.lastSeq = Math.max(this.lastSeq, frame.last_seq ?? 0); // may be ahead of the events: some are left out
    this.dispatchEvent(new CustomEvent("frame", { detail: { events, job: frame.job } }));
  }

  #lost(socket, tooMany) {
    if (this.#stopped || socket !== this.#socket) return;
    clearTimeout(this.#watch);
    this.#socket = null;
    this.#failures += 1;
    const offline = !navigator.onLine || this.#failures >= OFFLINE_AFTER_FAILURES;
    const delay = tooMany ? TOO_MANY_DELAY_MS : backoff(this.#failures);
    this.#timer = setTimeout(() => this.open(), delay);
    this.#setState(tooMany ? "waiting" : offline ? "offline" : "reconnecting", Date.now() + delay);
  }

  #retryNow() {
    if (this.#timer === null || this.#stopped) return;
    clearTimeout(this.#timer);
    this.open();
  }

  /** The network came back: a socket from before may be dead without anybody having told it. */
  #reconnect() {
    if (this.#stopped) return;
    clearTimeout(this.#timer);
    const old = this.#socket;
    this.open();
    old?.close();
  }

  #setState(state, retryAt = null) {
    document.dispatchEvent(new CustomEvent("live:state", { detail: { state, retryAt } }));
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }
}
