/**
 * The rows of one tab that this page holds: a contiguous run of its log, and the chunk that is still open.
 *
 * The server decides what is held (design: windows) and this model follows its frames to the letter. It
 * never guesses: what does not fit raises `OutOfStep`, and the session opens the tab anew. Rows are flat
 * and keyed by seq; turns and parts are made of them only when they are shown (group.js).
 *
 * Cost: at most `limits.chunkLimit` rows and `limits.byteLimit` bytes, plus one open chunk.
 */

/**
 * @typedef {{seq:number, turnId:string, step:number, role:string, type:string, data:any, bytes:number,
 *   createdAt:number}} Row
 * @typedef {{chunkLimit:number, byteLimit:number}} Limits
 * @typedef {{messageId:string, clientId:string, text:string, bytes?:number}} Queued
 */

/** A frame that does not fit what is held. The remedy is always the same: open the tab anew. */
export class OutOfStep extends Error {}

/** The field of `data` that deltas append to. */
const GROWING = { text: 'text', thinking: 'text', tool_call: 'arguments', tool_result: 'result' };

/** @param {Row[]} rows  Throws unless their seqs are without gaps. */
function mustBeContiguous(rows) {
  for (let i = 1; i < rows.length; i++) {
    if (rows[i].seq !== rows[i - 1].seq + 1) throw new OutOfStep(`gap after row ${rows[i - 1].seq}`);
  }
}

export class LogWindow {
  /** @param {string} tab @param {Limits} limits */
  constructor(tab, limits) {
    this.tab = tab;
    this.limits = limits;
    /** @type {Row[]} */
    this.rows = [];
    /** @type {Row|null} */
    this.open = null;
    this.bytes = 0;
    this.total = 0;
    this.following = true;
    /** @type {string|null} the turn that runs */
    this.turnId = null;
    /** @type {Queued[]} */
    this.queue = [];
    /** true once the server has told what there is */
    this.known = false;
  }

  get oldest() {
    return this.rows.length ? this.rows[0].seq : 0;
  }
  get newest() {
    return this.rows.length ? this.rows[this.rows.length - 1].seq : 0;
  }
  /** Nothing newer exists that is not held. */
  get atTail() {
    return this.newest >= this.total;
  }
  /** Something older exists that is not held. */
  get hasOlder() {
    return this.oldest > 1;
  }
  /** @param {number} seq @returns {Row|undefined} */
  row(seq) {
    return this.rows[seq - this.oldest];
  }

  /** A `window` frame: `replace` drops all that was held, `keep` goes on from it. */
  applyWindow(frame) {
    if (frame.base === 'keep') {
      this.open = null;
      this.#merge(frame.chunks, 'newer');
    } else {
      mustBeContiguous(frame.chunks);
      this.rows = frame.chunks.slice();
      this.bytes = this.rows.reduce((sum, row) => sum + row.bytes, 0);
    }
    this.total = frame.total;
    this.following = frame.following;
    this.turnId = frame.live ? frame.live.turnId : null;
    this.open = null;
    if (frame.live && frame.live.open) this.applyOpen(frame.live.open);
    this.queue = frame.queue || [];
    this.known = true;
    this.#wall();
  }

  /** A `chunks` frame: rows of one edge. Rows that are held already are not taken twice. */
  applyChunks(frame) {
    this.total = Math.max(this.total, frame.total);
    this.#merge(frame.chunks, frame.edge);
    this.#wall();
  }

  #merge(chunks, edge) {
    if (!chunks.length) return;
    mustBeContiguous(chunks);
    if (!this.rows.length) {
      this.rows = chunks.slice();
    } else if (edge === 'older') {
      const fresh = chunks.filter((row) => row.seq < this.oldest);
      if (fresh.length && fresh[fresh.length - 1].seq !== this.oldest - 1) {
        throw new OutOfStep(`older rows end at ${fresh[fresh.length - 1].seq}, held from ${this.oldest}`);
      }
      this.rows = fresh.concat(this.rows);
    } else {
      const fresh = chunks.filter((row) => row.seq > this.newest);
      if (fresh.length && fresh[0].seq !== this.newest + 1) {
        throw new OutOfStep(`newer rows begin at ${fresh[0].seq}, held to ${this.newest}`);
      }
      this.rows = this.rows.concat(fresh);
    }
    this.bytes = this.rows.reduce((sum, row) => sum + row.bytes, 0);
    if (this.open && this.open.seq <= this.newest) this.open = null;
  }

  /** An `evict` frame: the server makes room. Eviction after a seq takes the open chunk along. */
  applyEvict(frame) {
    if (frame.before !== undefined) this.rows = this.rows.filter((row) => row.seq >= frame.before);
    if (frame.after !== undefined) {
      this.rows = this.rows.filter((row) => row.seq <= frame.after);
      this.open = null;
    }
    this.bytes = this.rows.reduce((sum, row) => sum + row.bytes, 0);
  }

  /** A `chunk-open` frame's chunk: also replaces the open chunk of the same seq. */
  applyOpen(chunk) {
    if (this.rows.length && chunk.seq <= this.newest) return;
    if (this.rows.length && chunk.seq !== this.newest + 1) return this.#beyond(chunk.seq);
    this.open = { ...chunk, data: { ...chunk.data } };
  }

  /**
   * A `chunk-delta` frame.
   * @returns {boolean} whether the open chunk grew
   */
  applyDelta(frame) {
    if (!this.open || this.open.seq !== frame.seq) return false;
    const field = GROWING[this.open.type];
    if (!field) throw new OutOfStep(`a delta for a row of type ${this.open.type}`);
    this.open.data[field] = (this.open.data[field] || '') + frame.text;
    return true;
  }

  /** A `chunk` frame: sealed and committed. */
  applyChunk(frame) {
    const row = frame.chunk;
    this.total = Math.max(this.total, frame.total);
    if (this.open && this.open.seq <= row.seq) this.open = null;
    if (this.rows.length && row.seq <= this.newest) return;
    if (this.rows.length && row.seq !== this.newest + 1) return this.#beyond(row.seq);
    this.rows = this.rows.concat([row]);
    this.bytes += row.bytes;
    this.#wall();
  }

  /** Rows that are not adjacent: a fault while following, and only news while reading. */
  #beyond(seq) {
    if (this.following) throw new OutOfStep(`row ${seq} came, held to ${this.newest}`);
    this.total = Math.max(this.total, seq);
  }

  /** A `tail` frame: more below, while reading. */
  applyTail(frame) {
    this.total = Math.max(this.total, frame.total);
    if (this.open && this.open.seq <= frame.newest) this.open = null;
  }

  applyTurnStart(frame) {
    this.turnId = frame.turnId;
  }

  /**
   * A `turn-sealed` frame. A later turn is left alone.
   * @returns {boolean} whether all that the turn wrote is held, as far as it must be
   */
  applyTurnSealed(frame) {
    if (this.turnId === frame.turnId) {
      this.turnId = null;
      this.open = null;
    }
    this.total = Math.max(this.total, frame.lastSeq);
    return !this.following || this.newest >= frame.lastSeq;
  }

  /** @param {Limits} limits */
  setLimits(limits) {
    this.limits = limits;
    this.#wall();
  }

  /** The server keeps these limits; if this wall is ever reached, that is a fault and is told. */
  #wall() {
    if (this.rows.length > this.limits.chunkLimit) {
      throw new OutOfStep(`${this.rows.length} rows held, the limit is ${this.limits.chunkLimit}`);
    }
    if (this.bytes > this.limits.byteLimit) {
      throw new OutOfStep(`${this.bytes} bytes held, the limit is ${this.limits.byteLimit}`);
    }
  }

  /** What a `hello` says of this window after a lost connection. */
  resume(epoch) {
    if (!this.known || !this.rows.length) return undefined;
    return {
      epoch,
      tab: this.tab,
      oldestSeq: this.oldest,
      newestSeq: this.newest,
      following: this.following,
    };
  }
}
