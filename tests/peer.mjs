// A client of the WebSocket that holds a window as protocol.md says, and checks every frame against what is
// promised:
//
// - the window is one contiguous run, no row comes twice, and none is changed;
// - it is within both limits after every frame, evictions counted before the rows that need the room;
// - deltas come for the open chunk only, and a sealed row goes on from what was streamed;
// - a turn is told in order: turn-start, rows, turn-sealed, status.
//
// What is broken is kept in `fault`, and the fixture fails the test with it.

import assert from 'node:assert/strict';
import WebSocket from 'ws';

const TEXT = { tool_call: 'arguments', tool_result: 'result' };
const textOf = (chunk) => chunk.data[TEXT[chunk.type] ?? 'text'];

/** One socket. */
export class Peer {
  frames = [];
  rows = [];
  open_ = null;
  sealed = [];
  statuses = [];
  evicts = 0;
  maxRows = 0;
  fault = null;
  tail = 0;
  queue = [];
  tabs = new Map();
  #waiters = new Set();
  turn = null;
  #req = 0;

  constructor(
    url,
    { token, chunkLimit, byteLimit, resume, from, headers = {}, name = 'peer', check = true },
  ) {
    Object.assign(this, { token, chunkLimit, byteLimit, resume, name, check, url });
    if (from) this.#take(from);
    this.socket = new WebSocket(`${url.replace('http', 'ws')}/ws`, { headers, perMessageDeflate: false });
    this.closed = new Promise((done) =>
      this.socket.once('close', (code, reason) => done({ code, reason: `${reason}` })),
    );
    this.closed.then((how) => {
      this.end = how;
      this.#wake();
    });
    this.socket.on('error', (fault) => {
      this.error = fault;
    });
    this.socket.on('message', (bytes) => this.#frame(JSON.parse(bytes.toString())));
    this.opened = new Promise((done, fail) => {
      this.socket.once('open', done);
      this.socket.once('error', fail);
    });
    this.opened.catch(() => {});
  }

  /** Goes on from what another socket held. */
  #take(from) {
    this.rows = [...from.rows];
    this.tab = from.tab;
    this.following = from.following;
    this.resume = {
      epoch: from.epoch,
      tab: from.tab,
      oldestSeq: from.rows[0]?.seq ?? 0,
      newestSeq: from.rows.at(-1)?.seq ?? 0,
      following: from.following,
    };
    this.chunkLimit ??= from.chunkLimit;
    this.byteLimit ??= from.byteLimit;
  }

  say(frame) {
    this.socket.send(JSON.stringify(frame));
  }

  async hello() {
    await this.opened;
    const { token, chunkLimit, byteLimit, resume } = this;
    this.say({ type: 'hello', protocol: 1, token, chunkLimit, byteLimit, resume });
    return this.frame((frame) => frame.type === 'welcome');
  }

  async #ask(frame, types) {
    const req = (this.#req += 1);
    this.say({ ...frame, req });
    const reply = await this.frame((got) => got.req === req && got.type !== 'evict');
    assert.ok(
      types.includes(reply.type),
      `${frame.type} was answered by ${JSON.stringify(reply).slice(0, 200)}`,
    );
    return reply;
  }

  /** Makes `tab` the visible one. */
  open(tab, around) {
    this.wanted = tab;
    return this.#ask({ type: 'open', tab, around }, ['window']);
  }

  older(limit) {
    this.following = false;
    return this.#ask({ type: 'older', tab: this.tab, limit }, ['chunks']);
  }

  newer(limit) {
    return this.#ask({ type: 'newer', tab: this.tab, limit }, ['chunks']);
  }

  async follow(on) {
    if (on) {
      const reply = await this.#ask({ type: 'follow', tab: this.tab, on: true }, ['chunks', 'window']);
      this.following = true;
      return reply;
    }
    this.following = false;
    this.say({ type: 'follow', tab: this.tab, on: false });
    return this.ping();
  }

  /** A round trip: what was said before it has been dealt with. */
  async ping() {
    const n = (this.#req += 1);
    this.say({ type: 'ping', n });
    return this.frame((frame) => frame.type === 'pong' && frame.n === n);
  }

  /** The next frame that fits, from those that come after the call. */
  frame(fits, ms = 10_000) {
    const from = this.frames.length;
    let at = from;
    return this.until(
      () => {
        for (; at < this.frames.length; at += 1) if (fits(this.frames[at])) return this.frames[at];
        return null;
      },
      `a frame ${fits}`,
      ms,
    );
  }

  /** Waits until `look` gives something true. */
  until(look, what, ms = 20_000) {
    return new Promise((done, fail) => {
      const check = () => {
        const seen = look();
        if (seen) settle(done, seen);
        else if (this.fault) settle(fail, this.fault);
        else if (this.end) settle(fail, new Error(`closed (${this.end.code}) while waiting for ${what}`));
      };
      const late = setTimeout(
        () =>
          settle(
            fail,
            new Error(
              `waited ${ms} ms for ${what}; ` +
                `last frames: ${this.frames
                  .slice(-5)
                  .map((f) => JSON.stringify(f).slice(0, 150))
                  .join(' ')}`,
            ),
          ),
        ms,
      );
      const settle = (how, value) => {
        clearTimeout(late);
        this.#waiters.delete(check);
        how(value);
      };
      this.#waiters.add(check);
      check();
    });
  }

  /** Waits until `count` turns were sealed here and the tab rests. */
  turns(count = 1, ms = 20_000) {
    return this.until(
      () => this.sealed.length >= count && ['idle', 'error'].includes(this.statuses.at(-1)),
      `${count} sealed turns`,
      ms,
    );
  }

  /** Sends a clean close. */
  async close() {
    this.socket.close(1000);
    return this.closed;
  }

  /** Ends the connection without a word. */
  drop() {
    this.socket.terminate();
  }

  /** Text that was streamed and sealed, of one turn or all. */
  text(turnId, type = 'text') {
    return (
      this.rows
        .filter(
          (row) => row.type === type && row.role === 'assistant' && (!turnId || row.turnId === turnId),
        )
        .map((row) => row.data.text)
        .join('') + (this.open_?.type === type ? textOf(this.open_) : '')
    );
  }

  get bytes() {
    return this.rows.reduce((sum, row) => sum + row.bytes, 0);
  }

  get newest() {
    return this.rows.at(-1)?.seq;
  }

  #wake() {
    for (const check of [...this.#waiters]) check();
  }

  #frame(frame) {
    frame.at = performance.now();
    if (this.check && !this.fault) {
      try {
        this.#apply(frame);
        this.#limits(frame);
      } catch (fault) {
        fault.message = `${this.name}: ${JSON.stringify(frame).slice(0, 300)}: ${fault.message}`;
        this.fault = fault;
      }
    }
    this.frames.push(frame);
    this.#wake();
  }

  #limits(frame) {
    // What a client comes back with may be more than it may hold by now: the window after the welcome tells.
    if (!this.limits || frame.type === 'welcome') return;
    this.maxRows = Math.max(this.maxRows, this.rows.length);
    assert.ok(this.rows.length <= this.limits.chunkLimit, `${this.rows.length} rows after ${frame.type}`);
    assert.ok(this.bytes <= this.limits.byteLimit, `${this.bytes} bytes after ${frame.type}`);
  }

  #apply(frame) {
    const apply = APPLY[frame.type];
    assert.ok(apply, `unknown frame ${frame.type}`);
    apply.call(this, frame);
  }

  /** Checks a sealed row by itself and against the open chunk. */
  _row(row) {
    assert.equal(row.bytes, Buffer.byteLength(JSON.stringify(row.data)), `bytes of row ${row.seq}`);
    for (const key of ['signature', 'opaque']) assert.ok(!(key in row.data), `${key} left the server`);
    return row;
  }

  _add(rows, edge) {
    rows.forEach((row, at) => {
      this._row(row);
      if (at) assert.equal(row.seq, rows[at - 1].seq + 1, 'a page is contiguous');
    });
    if (!rows.length) return;
    if (this.rows.length && edge === 'newer')
      assert.equal(rows[0].seq, this.newest + 1, 'newer rows touch the window');
    if (this.rows.length && edge === 'older') {
      assert.equal(rows.at(-1).seq, this.rows[0].seq - 1, 'older rows touch the window');
    }
    this.rows = edge === 'older' ? [...rows, ...this.rows] : [...this.rows, ...rows];
    if (this.open_ && this.open_.seq <= this.newest) this.open_ = null;
  }

  _openChunk(chunk) {
    if (this.rows.length)
      assert.equal(chunk.seq, this.newest + 1, 'the open chunk stands below the newest row');
    if (this.open_ && this.open_.seq !== chunk.seq) assert.fail('a second open chunk');
    this.open_ = structuredClone(chunk);
  }

  _visible(frame) {
    assert.equal(frame.tab, this.tab, `${frame.type} of a tab that is not visible`);
  }
}

const APPLY = {
  welcome(frame) {
    assert.equal(frame.protocol, 1);
    if (this.epoch) this.rewelcomed = (this.rewelcomed ?? 0) + 1;
    this.epoch = frame.epoch;
    this.limits = frame.limits;
    this.tabs = new Map(frame.tabs.map((tab) => [tab.id, tab]));
    if (this.chunkLimit) assert.ok(frame.limits.chunkLimit <= Math.max(20, this.chunkLimit));
    if (this.byteLimit) assert.ok(frame.limits.byteLimit <= Math.max(256 * 1024, this.byteLimit));
    this.resumed = frame.resumed;
  },
  window(frame) {
    if (frame.base === 'replace') {
      this.rows = [];
      this.open_ = null;
      this.tab = frame.tab;
    } else {
      assert.equal(this.resumed, true, 'base keep without a resume');
      this.open_ = null;
    }
    if (frame.req !== undefined && this.wanted) assert.equal(frame.tab, this.wanted);
    this._visible(frame);
    this.following = frame.following;
    this.queue = frame.queue;
    this.live = frame.live;
    this._add(frame.chunks, 'newer');
    this.turn = frame.live ? { id: frame.live.turnId } : null;
    if (frame.live?.open) this._openChunk(frame.live.open);
    assert.ok(frame.chunks.length <= this.limits.pageLimit, 'a page is within pageLimit');
    if (frame.following && frame.chunks.length)
      assert.equal(this.newest, frame.total, 'following ends at the tail');
  },
  chunks(frame) {
    this._visible(frame);
    this._add(frame.chunks, frame.edge);
  },
  evict(frame) {
    this._visible(frame);
    this.evicts += 1;
    assert.ok((frame.before === undefined) !== (frame.after === undefined), 'evict says one edge');
    if (frame.before !== undefined) this.rows = this.rows.filter((row) => row.seq >= frame.before);
    else {
      // A follower may lose an open chunk that came to nothing, but no row.
      const lost = this.following && this.newest > frame.after;
      assert.ok(!lost, 'the newest end is never dropped under a follower');
      this.rows = this.rows.filter((row) => row.seq <= frame.after);
      this.open_ = null;
    }
  },
  'chunk-open'(frame) {
    this._visible(frame);
    this._openChunk(frame.chunk);
  },
  'chunk-delta'(frame) {
    this._visible(frame);
    assert.ok(this.open_, 'a delta without an open chunk');
    assert.equal(frame.seq, this.open_.seq, 'a delta for another chunk');
    this.open_.data[TEXT[this.open_.type] ?? 'text'] += frame.text;
    this.deltas = (this.deltas ?? 0) + 1;
  },
  chunk(frame) {
    this._visible(frame);
    const { chunk } = frame;
    if (this.open_?.seq === chunk.seq) {
      const streamed = textOf(this.open_);
      const stored = textOf(chunk);
      const same =
        stored.startsWith(streamed) || streamed.startsWith(stored) || chunk.type === 'tool_result';
      assert.ok(same, 'the sealed row is not what was streamed');
      this.open_ = null;
    }
    assert.equal(this.open_, null, 'a row sealed while another chunk is open');
    assert.ok(frame.total >= chunk.seq);
    // Between two turns a row may stand alone, such as a change of the model.
    if (this.turn && chunk.type !== 'system')
      assert.equal(chunk.turnId, this.turn.id, 'a row of another turn');
    this._add([chunk], 'newer');
  },
  tail(frame) {
    this._visible(frame);
    assert.ok(!this.following, 'tail is for readers');
    this.tail = frame.newest;
  },
  'turn-start'(frame) {
    if (frame.tab !== this.tab) return;
    assert.equal(this.turn, null, 'a turn starts inside another');
    this.turn = { id: frame.turnId };
  },
  'turn-sealed'(frame) {
    if (frame.tab !== this.tab) return;
    if (this.turn) assert.equal(frame.turnId, this.turn.id);
    assert.equal(this.open_, null, 'a turn sealed with an open chunk');
    if (this.following)
      assert.ok(this.newest >= frame.lastSeq, `sealed up to ${frame.lastSeq}, held ${this.newest}`);
    assert.ok(frame.firstSeq <= frame.lastSeq);
    this.sealed.push(frame);
    this.turn = null;
    this.statuses.push('sealed');
  },
  status(frame) {
    const tab = this.tabs.get(frame.tab);
    if (tab) tab.status = frame.status;
    if (frame.tab !== this.tab) return;
    if (['idle', 'error'].includes(frame.status)) assert.equal(this.turn, null, 'idle before turn-sealed');
    this.statuses.push(frame.status);
    this.detail = frame.detail;
  },
  'message-queued'(frame) {
    if (frame.tab === this.tab) this.queue.push(frame);
  },
  'message-consumed'(frame) {
    this.queue = this.queue.filter((message) => message.messageId !== frame.messageId);
  },
  'message-cancelled'(frame) {
    this.queue = this.queue.filter((message) => message.messageId !== frame.messageId);
  },
  tab(frame) {
    const rests = ['idle', 'error'].includes(frame.tab.status);
    if (frame.tab.id === this.tab && this.turn)
      assert.ok(!rests, `a tab that runs is told to be ${frame.tab.status}`);
    this.tabs.set(frame.tab.id, frame.tab);
  },
  'tab-removed'(frame) {
    this.tabs.delete(frame.id);
  },
  limits(frame) {
    Object.assign(this.limits, frame);
  },
  pong() {},
  error(frame) {
    this.refused = frame;
  },
  notice() {},
  'config-reload'() {},
  approval() {},
  'approval-resolved'() {},
};
