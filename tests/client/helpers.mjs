// Rows, a fake clock and a fake socket for the client's core.

let nextId = 0;

/** A row as the server would send it. */
export function row(seq, fields = {}) {
  const { type = 'text', role = 'assistant', turnId = 'u1', step = 1, ...data } = fields;
  const full = type === 'text' && role === 'assistant' ? { text: `row ${seq}`, block: seq, ...data } : data;
  return {
    seq,
    turnId,
    step,
    role,
    type,
    data: full,
    bytes: JSON.stringify(full).length,
    createdAt: 1000 + seq,
  };
}

export function rows(from, to, fields) {
  const made = [];
  for (let seq = from; seq <= to; seq += 1) made.push(row(seq, fields));
  return made;
}

export function windowFrame(tab, chunks, more = {}) {
  const total = chunks.length ? chunks[chunks.length - 1].seq : 0;
  return { type: 'window', tab, base: 'replace', chunks, total, following: true, queue: [], ...more };
}

/** A clock that stands still until it is told to go on. */
export class Clock {
  constructor() {
    this.time = 1_000_000;
    this.timers = new Map();
  }

  get around() {
    return {
      now: () => this.time,
      random: () => 0.5,
      setTimer: (run, ms) => {
        nextId += 1;
        this.timers.set(nextId, { at: this.time + ms, run });
        return nextId;
      },
      clearTimer: (id) => this.timers.delete(id),
    };
  }

  go(ms) {
    const end = this.time + ms;
    for (;;) {
      const due = [...this.timers]
        .filter(([, timer]) => timer.at <= end)
        .sort((a, b) => a[1].at - b[1].at)[0];
      if (!due) break;
      this.timers.delete(due[0]);
      this.time = due[1].at;
      due[1].run();
    }
    this.time = end;
  }
}

/** A WebSocket whose other end is the test. */
export class Socket {
  constructor() {
    this.sent = [];
    this.closed = null;
  }

  send(text) {
    this.sent.push(JSON.parse(text));
  }
  close(code) {
    this.closed = code;
  }
  /** A frame of the server; a window that replaces answers the last `open` unless it says otherwise. */
  frame(frame) {
    const asked = this.frames('open').at(-1);
    const answers = frame.type === 'window' && frame.base === 'replace' && asked && !('req' in frame);
    const whole = answers ? { ...frame, req: asked.req } : frame;
    if (this.onmessage) this.onmessage({ data: JSON.stringify(whole) });
  }
  frames(type) {
    return this.sent.filter((frame) => frame.type === type);
  }
}

/** A repeatable source of chance. */
export function chance(seed) {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}
