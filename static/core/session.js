/**
 * The page's state and what changes it: tabs, the window of the visible one, what was sent and is not yet
 * in the log, and the connection. Without DOM; views listen and render.
 *
 * Every frame is applied here, in order. What does not fit the window opens the tab anew (bounded, and
 * told), so a fault heals itself or is seen, but is never swallowed.
 */

import { Connection } from './connection.js';
import { LogWindow } from './window.js';
import { ApiError, newClientId } from './api.js';

export const PROTOCOL = 1;

/** Opening anew this often within `REOPEN_SPAN_MS` means that it does not help. */
const REOPENS_MAX = 3;
const REOPEN_SPAN_MS = 30_000;
/** Turns whose sums are kept for their footers. */
const SUMS_MAX = 200;
const SETTLED_MAX = 64;
/** What was seen is written down at most this often. */
const SEEN_REST_MS = 500;

/**
 * @typedef {{clientId:string, tab:string, text:string, state:'sending'|'sent'|'queued'|'unsent'|'refused',
 *   error?:string, messageId?:string, turnId?:string}} Pending
 */

export class Session {
  /**
   * @param {object} parts
   * @param {import('./api.js').Api} parts.api
   * @param {{get:(key:string)=>any, set:(key:string, value:any)=>void}} parts.storage  JSON by key,
   *   survives a reload
   * @param {() => any} parts.socket
   * @param {{setTimer:Function, clearTimer:Function, now:()=>number, random:()=>number}} parts.clock
   * @param {{chunkLimit?:number, byteLimit?:number}} [parts.wish]  limits that this device can bear
   */
  constructor({ api, storage, socket, clock, wish = {} }) {
    this.api = api;
    this.storage = storage;
    this.clock = clock;
    this.wish = wish;
    this.listeners = new Set();
    /** @type {Map<string, any>} */
    this.tabs = new Map();
    /** @type {string|null} the visible tab; null: one that does not exist yet */
    this.current = null;
    /** @type {LogWindow|null} */
    this.window = null;
    this.limits = { chunkLimit: 200, byteLimit: 1 << 20, pageLimit: 50 };
    this.epoch = null;
    this.approvals = [];
    /** @type {Pending[]} */
    this.pending = [];
    this.settled = [];
    this.details = new Map();
    this.runningSince = new Map();
    this.sums = new Map();
    /** where the visible tab is to be opened, if not at its tail */
    this.around = 0;
    this.seen = storage.get('seen') || {};
    this.unread = new Set();
    this.keeping = null;
    /** the newest seq that was there when the reader left the end */
    this.leftAt = 0;
    this.asked = { older: null, newer: null };
    /** the request whose window is waited for: what comes before it is of an older view */
    this.awaited = 0;
    /** the seq that the reader looks at, as the view knows it */
    this.eye = () => 0;
    this.reopens = [];
    this.notice = null;
    this.req = 0;
    this.connection = new Connection({
      socket,
      ...clock,
      hello: () => this.#hello(),
      onFrame: (frame) => this.#frame(frame),
      onState: (state) => this.#connected(state),
    });
  }

  /** @param {(what:string, detail?:any) => void} listener */
  on(listener) {
    this.listeners.add(listener);
  }

  #tell(what, detail) {
    for (const listener of this.listeners) listener(what, detail);
  }

  start() {
    this.connection.start();
  }

  get token() {
    return this.storage.get('token');
  }

  #hello() {
    const resume = this.window ? this.window.resume(this.epoch) : undefined;
    return {
      type: 'hello',
      protocol: PROTOCOL,
      token: this.token || '',
      ...this.wish,
      ...(resume && { resume }),
    };
  }

  #connected(state) {
    if (state !== 'open') this.asked = { older: null, newer: null };
    if (state !== 'open') this.awaited = 0;
    this.#tell('connection', state);
  }

  // ---- frames
  // -------------------------------------------------------------------------------------------------

  #frame(frame) {
    try {
      this.#apply(frame);
    } catch (error) {
      console.error(`siskin: ${frame.type}: ${error.message}`, error);
      this.#reopen();
    }
  }

  /** Opens the visible tab anew, unless that was done too often to help. */
  #reopen() {
    if (!this.current) return;
    const now = this.clock.now();
    this.reopens = this.reopens.filter((at) => now - at < REOPEN_SPAN_MS);
    if (this.reopens.length >= REOPENS_MAX) return this.#tell('broken');
    this.reopens.push(now);
    this.window = new LogWindow(this.current, this.limits);
    this.#open();
  }

  /** @param {number} [around]  a seq to read at, instead of the tail */
  #open(around) {
    this.asked = { older: null, newer: null };
    this.awaited = 0;
    const frame = { type: 'open', req: this.req + 1, tab: this.current, ...(around && { around }) };
    if (this.current && this.connection.send(frame)) this.awaited = ++this.req;
  }

  #apply(frame) {
    switch (frame.type) {
      case 'welcome':
        return this.#welcome(frame);
      case 'tab':
        return this.#tabChanged(frame.tab);
      case 'tab-removed':
        return this.#tabRemoved(frame.id);
      case 'status':
        return this.#status(frame);
      case 'turn-start':
        return this.#turnStart(frame);
      case 'turn-sealed':
        return this.#turnSealed(frame);
      case 'limits':
        return this.#limits(frame);
      case 'approval':
        return this.#approval(frame.approval);
      case 'approval-resolved':
        this.approvals = this.approvals.filter((one) => one.id !== frame.id);
        return this.#tell('approvals');
      case 'notice':
      case 'config-reload':
        return this.#tell('notice', frame.text);
      case 'error':
        return this.#refused(frame);
      case 'message-queued':
      case 'message-consumed':
      case 'message-cancelled':
        return this.#message(frame);
      default:
        if (this.window && frame.tab === this.window.tab) this.#windowFrame(frame);
    }
  }

  #welcome(frame) {
    this.epoch = frame.epoch;
    this.limits = frame.limits;
    this.approvals = frame.approvals || [];
    this.tabs = new Map(frame.tabs.map((tab) => [tab.id, tab]));
    for (const tab of frame.tabs) {
      if (tab.id !== this.current && tab.id in this.seen && tab.total > this.seen[tab.id])
        this.unread.add(tab.id);
      if (tab.status !== 'retrying') this.details.delete(tab.id);
      this.#clockTurn(tab.id, tab.status);
    }
    if (this.window) this.window.limits = frame.limits;
    if (this.current && !this.tabs.has(this.current)) this.show(null);
    // With a resume the window comes by itself; a welcome amid a connection is followed by one as well.
    else if (this.current && !(this.window && this.window.known)) this.#open(this.around);
    // The server goes to the oldest row that was held; the reader was further down.
    else if (this.current && !frame.resumed && !this.window.following) this.#open(this.eye());
    this.#tell('tabs');
    this.#tell('approvals');
    this.#tell('welcome');
    for (const one of this.pending.filter((each) => each.state === 'unsent')) this.#post(one);
  }

  #windowFrame(frame) {
    const log = this.window;
    if (this.awaited && frame.req !== this.awaited) return;
    this.awaited = 0;
    switch (frame.type) {
      case 'window':
        log.applyWindow(frame);
        this.asked = { older: null, newer: null };
        this.around = 0;
        this.leftAt = log.following ? 0 : this.leftAt || log.total;
        break;
      case 'chunks': {
        const before = [log.oldest, log.newest];
        log.applyChunks(frame);
        if (frame.req && this.asked[frame.edge] && this.asked[frame.edge].req === frame.req) {
          const moved = frame.edge === 'older' ? before[0] !== log.oldest : before[1] !== log.newest;
          this.asked[frame.edge] = moved
            ? null
            : { done: true, at: frame.edge === 'older' ? log.oldest : log.newest };
          this.#tell('edge');
        }
        break;
      }
      case 'evict':
        log.applyEvict(frame);
        break;
      case 'chunk-open':
        log.applyOpen(frame.chunk);
        break;
      case 'chunk-delta':
        if (log.applyDelta(frame)) this.#tell('delta');
        return;
      case 'chunk':
        log.applyChunk(frame);
        break;
      case 'tail':
        log.applyTail(frame);
        break;
      default:
        return;
    }
    this.#settleRows();
    this.#saw();
    this.#tell('rows', frame.type);
  }

  #tabChanged(tab) {
    if (tab.archived) return this.#tabRemoved(tab.id);
    this.tabs.set(tab.id, tab);
    this.#clockTurn(tab.id, tab.status);
    this.#tell('tabs');
  }

  #tabRemoved(id) {
    this.tabs.delete(id);
    if (this.current === id) this.show(null);
    this.#tell('tabs');
  }

  #clockTurn(tab, status) {
    const busy = status !== 'idle' && status !== 'error';
    if (!busy) this.runningSince.delete(tab);
    else if (!this.runningSince.has(tab)) this.runningSince.set(tab, this.clock.now());
  }

  #status(frame) {
    const tab = this.tabs.get(frame.tab);
    if (tab) tab.status = frame.status;
    if (frame.detail) this.details.set(frame.tab, { ...frame.detail, at: this.clock.now() });
    else this.details.delete(frame.tab);
    this.#clockTurn(frame.tab, frame.status);
    const ended = frame.status === 'idle' || frame.status === 'error';
    if (ended && this.window && this.window.tab === frame.tab && this.window.turnId) {
      // Idle comes after the seal; a turn that is still thought to run was missed.
      this.window.turnId = null;
      this.#tell('rows', 'status');
    }
    this.#tell('tabs');
  }

  #turnStart(frame) {
    if (!this.window || frame.tab !== this.window.tab) return;
    this.window.applyTurnStart(frame);
    this.#tell('rows', frame.type);
  }

  #turnSealed(frame) {
    const tab = this.tabs.get(frame.tab);
    if (tab) tab.total = Math.max(tab.total, frame.lastSeq);
    this.keepSum(frame.turnId, { stopReason: frame.stopReason, usage: frame.usage });
    if (frame.tab !== this.current) {
      this.unread.add(frame.tab);
      this.#tell('tabs');
    }
    if (!this.window || frame.tab !== this.window.tab) return;
    this.pending = this.pending.filter((one) => one.turnId !== frame.turnId);
    const whole = this.window.applyTurnSealed(frame);
    this.#tell('rows', frame.type);
    this.#tell('turn-end', frame);
    if (!whole) this.#reopen();
  }

  #limits(frame) {
    Object.assign(this.limits, { chunkLimit: frame.chunkLimit, byteLimit: frame.byteLimit });
    if (this.window) this.window.setLimits(this.limits);
  }

  #approval(approval) {
    this.approvals = this.approvals.filter((one) => one.id !== approval.id).concat([approval]);
    this.#tell('approvals');
  }

  #refused(frame) {
    if (frame.req === this.awaited) this.awaited = 0;
    for (const edge of ['older', 'newer']) {
      if (this.asked[edge] && this.asked[edge].req === frame.req) this.asked[edge] = null;
    }
    // The visible tab changed meanwhile: what was asked of the old one is moot.
    if (frame.code !== 'not_open') this.#tell('notice', frame.message);
    this.#tell('edge');
  }

  keepSum(turnId, sum) {
    this.sums.set(turnId, { ...this.sums.get(turnId), ...sum });
    if (this.sums.size > SUMS_MAX) this.sums.delete(this.sums.keys().next().value);
  }

  // ---- messages
  // -----------------------------------------------------------------------------------------------

  #settle(clientId) {
    this.settled = this.settled.concat([clientId]).slice(-SETTLED_MAX);
    this.pending = this.pending.filter((one) => one.clientId !== clientId);
  }

  /** Rows that carry a message's id take the place of what stood for it until then. */
  #settleRows() {
    const log = this.window;
    if (!log || (!this.pending.length && !log.queue.length)) return;
    const there = new Set(log.rows.filter((row) => row.role === 'user').map((row) => row.data.clientId));
    for (const one of this.pending.slice()) if (there.has(one.clientId)) this.#settle(one.clientId);
    log.queue = log.queue.filter((one) => !there.has(one.clientId));
    const queued = new Set(log.queue.map((one) => one.clientId));
    this.pending = this.pending.filter((one) => !queued.has(one.clientId));
  }

  #message(frame) {
    const log = this.window;
    const here = log && log.tab === frame.tab;
    if (frame.type === 'message-queued') {
      this.pending = this.pending.filter((one) => one.clientId !== frame.clientId);
      const known = here && log.queue.some((one) => one.messageId === frame.messageId);
      if (here && !known && !this.settled.includes(frame.clientId)) log.queue = log.queue.concat([frame]);
    } else {
      this.#settle(frame.clientId);
      if (here) log.queue = log.queue.filter((one) => one.messageId !== frame.messageId);
    }
    this.#tell('queue');
  }

  /** Sends a message to the visible tab, or to a new one, whose model and effort may be told. */
  async send(text, fields = {}) {
    let tab = this.current;
    if (!tab) {
      const made = await this.api.post('/api/tabs', fields);
      this.tabs.set(made.id, made);
      this.show(made.id);
      this.#tell('tabs');
      tab = made.id;
    }
    const one = { clientId: newClientId(), tab, text, state: 'sending' };
    this.pending.push(one);
    if (!this.window.following) this.follow(true);
    this.#tell('queue');
    await this.#post(one);
  }

  /** Repeats are safe: the server knows the message by its id. @param {Pending} one */
  async #post(one) {
    one.state = 'sending';
    try {
      const answer = await this.api.post(`/api/tabs/${one.tab}/messages`, {
        clientId: one.clientId,
        text: one.text,
      });
      one.state = answer.status === 'queued' ? 'queued' : 'sent';
      one.messageId = answer.messageId;
      one.turnId = answer.turnId;
    } catch (error) {
      const lost = !(error instanceof ApiError) || error.status === 0;
      one.state = lost ? 'unsent' : 'refused';
      one.error = error.message;
      if (error.status === 401) this.#tell('denied');
    }
    this.#tell('queue');
  }

  /** @param {string} clientId  tries a message again that was not taken */
  retry(clientId) {
    const one = this.pending.find((each) => each.clientId === clientId);
    if (one) this.#post(one);
  }

  /** @param {string} clientId  gives up a message that was not taken @returns {string} its text */
  forget(clientId) {
    const one = this.pending.find((each) => each.clientId === clientId);
    this.pending = this.pending.filter((each) => each !== one);
    this.#tell('queue');
    return one ? one.text : '';
  }

  async takeBack(messageId) {
    try {
      await this.api.delete(`/api/tabs/${this.current}/queue/${messageId}`);
    } catch (error) {
      if (error.status !== 404) throw error;
    }
    if (this.window) this.window.queue = this.window.queue.filter((one) => one.messageId !== messageId);
    this.pending = this.pending.filter((one) => one.messageId !== messageId);
    this.#tell('queue');
  }

  // ---- what the reader does
  // -----------------------------------------------------------------------------------

  /**
   * @param {string|null} id  makes a tab the visible one; null: the empty page of a new one
   * @param {number} [around]  a seq to go to
   */
  show(id, around = 0) {
    if (id === this.current && this.window && !around) return;
    this.current = id;
    this.unread.delete(id);
    this.leftAt = 0;
    this.around = around;
    this.window = id ? new LogWindow(id, this.limits) : null;
    if (around) this.window.following = false;
    this.#open(around);
    this.#tell('show', around);
    this.#tell('tabs');
  }

  /** Shows rows that an earlier page kept, until the server's come. */
  recall({ tab, rows, total, tabs }) {
    this.tabs = new Map(tabs.map((one) => [one.id, one]));
    this.show(tab);
    try {
      this.window.applyWindow({ base: 'replace', chunks: rows, total, following: true });
    } catch {
      this.window = new LogWindow(tab, this.limits);
    }
    // Not known: what it holds is for the eyes only, and the tab is opened as if nothing was held.
    this.window.known = false;
    this.#tell('rows', 'recall');
  }

  /** @param {boolean} on  at the bottom, or reading */
  follow(on) {
    const log = this.window;
    if (!log || log.following === on) return;
    log.following = on;
    this.leftAt = on ? 0 : log.newest;
    this.connection.send({ type: 'follow', req: ++this.req, tab: log.tab, on });
    this.#saw();
    this.#tell('follow', on);
  }

  /** Rows that came since the reader left the end. */
  get news() {
    const log = this.window;
    if (!log || log.following) return 0;
    return Math.max(0, log.total - Math.max(this.leftAt, 0));
  }

  /**
   * Asks for more at an edge; once per place of that edge.
   * @param {'older'|'newer'} edge @returns {boolean} whether it is on its way
   */
  more(edge) {
    const log = this.window;
    if (!log || !log.known || this.connection.state !== 'open') return false;
    if (edge === 'older' ? !log.hasOlder : log.atTail) return false;
    const asked = this.asked[edge];
    const at = edge === 'older' ? log.oldest : log.newest;
    if (asked && !asked.done) return true;
    if (asked && asked.done && asked.at === at) return false;
    if (edge === 'older') this.#reads();
    this.asked[edge] = { req: ++this.req };
    return this.connection.send({ type: edge, req: this.req, tab: log.tab });
  }

  /** `older` implies reading, on both sides. */
  #reads() {
    if (!this.window.following) return;
    this.window.following = false;
    this.leftAt = this.window.newest;
    this.#tell('follow', false);
  }

  #saw() {
    const log = this.window;
    if (!log || !log.newest || !log.following) return;
    if (this.seen[log.tab] === log.newest) return;
    this.seen[log.tab] = log.newest;
    // Not once a row: a write to the storage takes as long as showing one.
    if (!this.keeping) this.keeping = this.clock.setTimer(() => this.keep(), SEEN_REST_MS);
  }

  /** Writes down what was seen. */
  keep() {
    if (!this.keeping) return;
    this.clock.clearTimer(this.keeping);
    this.keeping = null;
    this.storage.set('seen', this.seen);
  }
}
