/**
 * One WebSocket that is kept alive: says hello, pings, notices silence, and comes back after a loss.
 *
 * States: `off` (not wanted) · `connecting` (until `welcome`) · `open` · `waiting` (for the next try) ·
 * `denied` (the token is not, or no longer, good; nothing is tried until `start`). Timers, sockets and
 * chance come from outside, so that tests own them. Events of a socket that was given up are never heard.
 */

export const PING_MS = 20_000;
export const PONG_MS = 5_000;
export const GREET_MS = 10_000;
export const BACKOFF_MIN_MS = 500;
export const BACKOFF_MAX_MS = 10_000;

/** Close codes of the protocol that mean more than "try again". */
const DENIED = 4401;

/**
 * @typedef {object} Surroundings
 * @property {() => any} socket  makes a WebSocket (or what looks like one)
 * @property {(run: () => void, ms: number) => any} setTimer
 * @property {(timer: any) => void} clearTimer
 * @property {() => number} random  in [0, 1)
 * @property {() => number} now  milliseconds
 * @property {() => object} hello  the first frame, made anew for each try
 * @property {(frame: any) => void} onFrame
 * @property {(state: string) => void} onState
 */

export class Connection {
  /** @param {Surroundings} around */
  constructor(around) {
    this.around = around;
    this.state = 'off';
    this.attempt = 0;
    /** when the next try is due, while waiting */
    this.retryAt = 0;
    this.socket = null;
    this.timers = {};
    this.pings = 0;
  }

  start() {
    if (this.state === 'connecting' || this.state === 'open') return;
    this.#connect();
  }

  stop() {
    this.#drop(1000);
    this.#become('off');
  }

  /** @returns {boolean} whether the frame was handed to an open socket */
  send(frame) {
    if (this.state !== 'open') return false;
    this.socket.send(JSON.stringify(frame));
    return true;
  }

  /** The network or the page woke up: try now, or make sure that the peer still answers. */
  nudge() {
    if (this.state === 'waiting') this.#connect();
    else if (this.state === 'open') this.#ping();
  }

  #become(state) {
    if (this.state === state) return;
    this.state = state;
    this.around.onState(state);
  }

  #timer(name, ms, run) {
    this.around.clearTimer(this.timers[name]);
    this.timers[name] = this.around.setTimer(run, ms);
  }

  #drop(code) {
    for (const name of Object.keys(this.timers)) this.around.clearTimer(this.timers[name]);
    this.timers = {};
    const socket = this.socket;
    this.socket = null;
    if (!socket) return;
    socket.onopen = socket.onmessage = socket.onclose = socket.onerror = null;
    try {
      socket.close(code);
    } catch {
      // A socket that never opened may refuse the code; it is forgotten anyway.
    }
  }

  #connect() {
    this.#drop(1000);
    this.#become('connecting');
    let socket;
    try {
      socket = this.around.socket();
    } catch {
      return this.#lost(0);
    }
    this.socket = socket;
    socket.onopen = () => socket.send(JSON.stringify(this.around.hello()));
    socket.onmessage = (event) => this.#heard(event.data);
    socket.onclose = (event) => this.#lost(event.code);
    this.#timer('greet', GREET_MS, () => this.#lost(0));
  }

  #heard(text) {
    const frame = JSON.parse(text);
    if (frame.type === 'pong') return this.#ponged(frame.n);
    if (frame.type === 'welcome' && this.state !== 'open') {
      this.around.clearTimer(this.timers.greet);
      this.attempt = 0;
      this.#become('open');
      this.#timer('ping', PING_MS, () => this.#ping());
    }
    this.around.onFrame(frame);
  }

  #ping() {
    this.pings += 1;
    this.socket.send(JSON.stringify({ type: 'ping', n: this.pings }));
    this.#timer('pong', PONG_MS, () => {
      this.#drop(1000);
      this.#connect();
    });
    this.#timer('ping', PING_MS, () => this.#ping());
  }

  #ponged(n) {
    if (n === this.pings) this.around.clearTimer(this.timers.pong);
  }

  #lost(code) {
    this.#drop(1000);
    if (code === DENIED) return this.#become('denied');
    const ceiling = Math.min(BACKOFF_MAX_MS, BACKOFF_MIN_MS * 2 ** this.attempt);
    const wait = Math.max(BACKOFF_MIN_MS, ceiling * (0.5 + this.around.random() / 2));
    this.attempt += 1;
    this.retryAt = this.around.now() + wait;
    this.#become('waiting');
    this.#timer('retry', wait, () => this.#connect());
  }
}
