// The client's window: contiguous, within its limits, and never guessing.
import assert from 'node:assert/strict';
import test from 'node:test';
import { LogWindow, OutOfStep } from '../../static/core/window.js';
import { chance, row, rows, windowFrame } from './helpers.mjs';

const LIMITS = { chunkLimit: 40, byteLimit: 256 * 1024 };

function opened(from, to, more) {
  const log = new LogWindow('t1', LIMITS);
  log.applyWindow(windowFrame('t1', rows(from, to), more));
  return log;
}

const seqs = (log) => log.rows.map((one) => one.seq);
const span = (from, to) => rows(from, to).map((one) => one.seq);

test('a window replaces what was held', () => {
  const log = opened(1, 10);
  log.applyOpen(row(11));
  log.applyWindow(windowFrame('t1', rows(50, 60)));
  assert.deepEqual(seqs(log), span(50, 60));
  assert.equal(log.open, null);
});

test('a kept window goes on from the newest row', () => {
  const log = opened(1, 10);
  log.applyWindow(windowFrame('t1', rows(11, 13), { base: 'keep', total: 13 }));
  assert.deepEqual(seqs(log), span(1, 13));
});

test('a snapshot replaces the open chunk, so no text is doubled after a reconnect', () => {
  const log = opened(1, 3);
  log.applyOpen(row(4, { text: 'Hello' }));
  log.applyDelta({ seq: 4, text: ' wor' });
  log.applyWindow(
    windowFrame('t1', [], {
      base: 'keep',
      total: 3,
      live: { turnId: 'u1', open: row(4, { text: 'Hello world' }) },
    }),
  );
  log.applyDelta({ seq: 4, text: '!' });
  assert.equal(log.open.data.text, 'Hello world!');
});

test('older and newer rows merge by seq, and none is taken twice', () => {
  const log = opened(20, 30, { total: 40 });
  log.applyChunks({ edge: 'older', chunks: rows(10, 22), total: 40 });
  log.applyChunks({ edge: 'newer', chunks: rows(28, 35), total: 40 });
  log.applyChunks({ edge: 'newer', chunks: rows(28, 35), total: 40 });
  assert.deepEqual(seqs(log), span(10, 35));
  assert.equal(
    log.bytes,
    log.rows.reduce((sum, one) => sum + one.bytes, 0),
  );
});

test('rows that leave a hole are refused at both edges', () => {
  const log = opened(20, 30, { total: 40 });
  assert.throws(() => log.applyChunks({ edge: 'older', chunks: rows(5, 18), total: 40 }), OutOfStep);
  assert.throws(() => log.applyChunks({ edge: 'newer', chunks: rows(32, 33), total: 40 }), OutOfStep);
  assert.throws(() => log.applyChunks({ edge: 'newer', chunks: [row(31), row(33)], total: 40 }), OutOfStep);
  assert.deepEqual(seqs(log), span(20, 30));
});

test('evicted rows do not come back by a late answer', () => {
  const log = opened(1, 30);
  log.applyEvict({ before: 11 });
  assert.throws(() => log.applyChunks({ edge: 'older', chunks: rows(1, 5), total: 30 }), OutOfStep);
  assert.deepEqual(seqs(log), span(11, 30));
});

test('evicting the newest end takes the open chunk along', () => {
  const log = opened(1, 30);
  log.applyOpen(row(31));
  log.applyEvict({ after: 20 });
  assert.deepEqual(seqs(log), span(1, 20));
  assert.equal(log.open, null);
});

test('everything evicted leaves no stale edge behind', () => {
  const log = opened(1, 30);
  log.applyEvict({ before: 31 });
  assert.equal(log.oldest, 0);
  assert.equal(log.bytes, 0);
  log.applyChunks({ edge: 'newer', chunks: rows(31, 33), total: 33 });
  assert.deepEqual(seqs(log), span(31, 33));
});

test('the first row of a log is seq 1, and nothing older is asked for there', () => {
  assert.equal(opened(1, 5).hasOlder, false);
  assert.equal(opened(2, 5).hasOlder, true);
  assert.equal(new LogWindow('t1', LIMITS).hasOlder, false);
});

test('a sealed chunk takes the place of the open one', () => {
  const log = opened(1, 3);
  log.applyOpen(row(4, { text: 'a' }));
  assert.equal(log.applyDelta({ seq: 4, text: 'b' }), true);
  assert.equal(log.open.data.text, 'ab');
  log.applyChunk({ chunk: row(4, { text: 'ab' }), total: 4 });
  assert.equal(log.open, null);
  assert.deepEqual(seqs(log), [1, 2, 3, 4]);
});

test('a delta for another chunk than the open one is not appended', () => {
  const log = opened(1, 3);
  log.applyOpen(row(4, { text: 'a' }));
  assert.equal(log.applyDelta({ seq: 3, text: 'x' }), false);
  assert.equal(log.open.data.text, 'a');
});

test('deltas grow arguments and results as well', () => {
  const log = opened(1, 3);
  log.applyOpen(row(4, { type: 'tool_call', callId: 'c', name: 'shell', arguments: '{' }));
  log.applyDelta({ seq: 4, text: '}' });
  assert.equal(log.open.data.arguments, '{}');
  log.applyChunk({ chunk: log.open, total: 4 });
  log.applyOpen(row(5, { type: 'tool_result', role: 'tool', callId: 'c', name: 'shell', result: '' }));
  log.applyDelta({ seq: 5, text: 'out' });
  assert.equal(log.open.data.result, 'out');
});

test('a gap is a fault while following, and only news while reading', () => {
  const following = opened(1, 10);
  assert.throws(() => following.applyChunk({ chunk: row(12), total: 12 }), OutOfStep);
  const reading = opened(1, 10, { following: false, total: 10 });
  reading.applyChunk({ chunk: row(12), total: 12 });
  assert.equal(reading.newest, 10);
  assert.equal(reading.total, 12);
  assert.equal(reading.atTail, false);
});

test('the second wall stands at the limits in rows and in bytes, and the open chunk is exempt', () => {
  const log = opened(1, 40);
  log.applyOpen(row(41));
  assert.throws(() => log.applyChunk({ chunk: row(41), total: 41 }), /41 rows held, the limit is 40/);
  const fat = opened(1, 2);
  const big = { ...row(3), bytes: LIMITS.byteLimit };
  assert.throws(() => fat.applyChunk({ chunk: big, total: 3 }), /bytes held/);
});

test('an open chunk that was sealed unseen does not stay open', () => {
  const log = opened(1, 10, { following: false });
  log.applyOpen(row(11));
  log.applyTail({ newest: 11, total: 11 });
  assert.equal(log.open, null);
});

test('a sealed turn whose last row is missing is noticed', () => {
  const log = opened(1, 10);
  log.applyTurnStart({ turnId: 'u2' });
  assert.equal(log.applyTurnSealed({ turnId: 'u2', lastSeq: 10 }), true);
  log.applyTurnStart({ turnId: 'u3' });
  assert.equal(log.applyTurnSealed({ turnId: 'u3', lastSeq: 12 }), false);
});

test('sealing one turn leaves a newer one that runs alone', () => {
  const log = opened(1, 10);
  log.applyTurnStart({ turnId: 'u3' });
  log.applyOpen(row(11, { turnId: 'u3' }));
  log.applyTurnSealed({ turnId: 'u2', lastSeq: 10 });
  assert.equal(log.turnId, 'u3');
  assert.equal(log.open.seq, 11);
});

test('a hello says what is held, and nothing before anything is', () => {
  assert.equal(new LogWindow('t1', LIMITS).resume('e'), undefined);
  assert.deepEqual(opened(3, 9, { following: false, total: 20 }).resume('e'), {
    epoch: 'e',
    tab: 't1',
    oldestSeq: 3,
    newestSeq: 9,
    following: false,
  });
});

test('any sequence a server may send keeps the window contiguous, bounded and true to the log', () => {
  for (let seed = 1; seed <= 200; seed += 1) {
    const pick = chance(seed);
    const server = new Server(pick);
    const log = new LogWindow('t1', LIMITS);
    for (let step = 0; step < 120; step += 1) {
      for (const frame of server.step()) apply(log, frame);
      check(log, server, `seed ${seed} step ${step}`);
    }
  }
});

function apply(log, frame) {
  const deeds = {
    window: 'applyWindow',
    chunks: 'applyChunks',
    evict: 'applyEvict',
    chunk: 'applyChunk',
    tail: 'applyTail',
    'chunk-open': 'applyOpen',
    'chunk-delta': 'applyDelta',
  };
  log[deeds[frame.type]](frame.type === 'chunk-open' ? frame.chunk : frame);
}

function check(log, server, where) {
  assert.ok(log.rows.length <= LIMITS.chunkLimit, where);
  log.rows.forEach((one, i) => assert.equal(one.seq, log.rows[0].seq + i, where));
  for (const one of log.rows) assert.deepEqual(one, server.log[one.seq - 1], where);
  assert.equal(log.oldest, server.held ? server.oldest : 0, where);
  assert.equal(log.newest, server.held ? server.newest : 0, where);
  if (log.open) {
    assert.equal(log.open.seq, log.newest + 1 || 1, where);
    assert.equal(log.open.data.text, server.open.data.text, where);
  }
}

/**
 * The server's rule of windows in small: quarter evictions at the oldest end while following, sliding while
 * reading.
 */
class Server {
  constructor(pick) {
    this.pick = pick;
    this.log = rows(1, pick(120));
    this.open = null;
    this.reset();
    this.first = true;
  }

  get held() {
    return this.newest >= this.oldest;
  }
  get count() {
    return this.newest - this.oldest + 1;
  }

  reset() {
    this.following = true;
    this.newest = this.log.length;
    this.oldest = Math.max(1, this.newest - 9);
  }

  window() {
    this.reset();
    const live = this.open ? { turnId: 'u1', open: structuredClone(this.open) } : undefined;
    return [
      {
        type: 'window',
        base: 'replace',
        chunks: this.log.slice(this.oldest - 1, this.newest),
        total: this.log.length,
        following: true,
        live,
        queue: [],
      },
    ];
  }

  get atTail() {
    return this.newest === this.log.length;
  }
  get flows() {
    return this.atTail && (this.following || this.count < LIMITS.chunkLimit);
  }

  step() {
    if (this.first) {
      this.first = false;
      return this.window();
    }
    const deed = this.pick(10);
    if (deed < 3) return this.delta();
    if (deed < 6) return this.seal();
    if (deed === 6) return this.older();
    if (deed === 7) return this.newer();
    if (deed === 8 && !this.following) return this.follow();
    return this.pick(8) ? [] : this.window();
  }

  delta() {
    if (!this.open) {
      this.open = row(this.log.length + 1, { text: '' });
      this.shown = this.flows;
      return this.shown ? [{ type: 'chunk-open', chunk: structuredClone(this.open) }] : [];
    }
    this.open.data.text += 'x';
    return this.flows ? [{ type: 'chunk-delta', seq: this.open.seq, text: 'x' }] : [];
  }

  seal() {
    const sealed = this.open || row(this.log.length + 1);
    sealed.bytes = JSON.stringify(sealed.data).length;
    const { flows } = this;
    this.open = null;
    this.log.push(sealed);
    if (!flows) return [{ type: 'tail', newest: sealed.seq, total: this.log.length }];
    const frames = [];
    if (this.count >= LIMITS.chunkLimit) {
      this.oldest = this.newest - LIMITS.chunkLimit * 0.75 + 1;
      frames.push({ type: 'evict', before: this.oldest });
    }
    this.newest = sealed.seq;
    return [...frames, { type: 'chunk', chunk: sealed, total: this.log.length }];
  }

  older() {
    this.following = false;
    const from = Math.max(1, this.oldest - 1 - this.pick(20));
    const page = this.log.slice(from - 1, this.oldest - 1);
    const frames = [];
    if (this.count + page.length > LIMITS.chunkLimit) {
      this.newest = from + LIMITS.chunkLimit - 11;
      frames.push({ type: 'evict', after: this.newest });
    }
    this.oldest = page.length ? from : this.oldest;
    // A full window of a reader loses the open chunk.
    if (!this.flows) frames.push({ type: 'evict', after: this.newest });
    return [...frames, { type: 'chunks', edge: 'older', chunks: page, total: this.log.length }];
  }

  newer() {
    if (this.atTail) return [];
    const page = this.log.slice(this.newest, this.newest + 1 + this.pick(20));
    const frames = [];
    if (this.count + page.length > LIMITS.chunkLimit) {
      this.oldest = this.newest + page.length - LIMITS.chunkLimit + 11;
      frames.push({ type: 'evict', before: this.oldest });
    }
    this.newest += page.length;
    frames.push({ type: 'chunks', edge: 'newer', chunks: page, total: this.log.length });
    if (this.atTail && this.open) frames.push({ type: 'chunk-open', chunk: structuredClone(this.open) });
    return frames;
  }

  follow() {
    return this.window();
  }
}
