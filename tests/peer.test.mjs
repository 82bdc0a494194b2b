// The protocol client itself: that each broken promise of a server is seen, and none is seen where all is
// kept.

import assert from 'node:assert/strict';
import test from 'node:test';
import { WebSocketServer } from 'ws';
import { checkLog } from './fixture.mjs';
import { Peer } from './peer.mjs';

const row = (seq, more = {}) => {
  const data = { text: `row ${seq}`, block: seq };
  const base = { seq, turnId: 'u1', step: 1, role: 'assistant', type: 'text', data, createdAt: 1, ...more };
  return { ...base, bytes: more.bytes ?? Buffer.byteLength(JSON.stringify(base.data)) };
};
const rows = (from, to) => Array.from({ length: to - from + 1 }, (_, n) => row(from + n));
const open = (seq, text = '') => ({ ...row(seq), data: { text, block: seq }, bytes: undefined });

const welcome = {
  type: 'welcome',
  protocol: 1,
  epoch: 'e',
  limits: { chunkLimit: 20, byteLimit: 262144, chunkBytes: 16384, pageLimit: 20 },
  tabs: [],
  approvals: [],
  resumed: false,
};
const window = (chunks, more = {}) => ({
  type: 'window',
  tab: 't1',
  base: 'replace',
  chunks,
  total: chunks.at(-1)?.seq ?? 0,
  following: true,
  queue: [],
  ...more,
});
const start = { type: 'turn-start', tab: 't1', turnId: 'u1' };
const sealed = (lastSeq) => ({
  type: 'turn-sealed',
  tab: 't1',
  turnId: 'u1',
  firstSeq: 1,
  lastSeq,
  stopReason: 'end',
  usage: {},
});
const status = (word) => ({ type: 'status', tab: 't1', status: word });
const chunk = (one) => ({ type: 'chunk', tab: 't1', chunk: one, total: one.seq });
const opened = (one) => ({ type: 'chunk-open', tab: 't1', chunk: one });
const delta = (seq, text) => ({ type: 'chunk-delta', tab: 't1', seq, text });
const evict = (more) => ({ type: 'evict', tab: 't1', ...more });
const page = (edge, chunks) => ({ type: 'chunks', tab: 't1', edge, chunks, total: 99 });

const CASES = [
  [
    'a turn in order',
    [
      window([]),
      start,
      status('running'),
      chunk(row(1)),
      opened(open(2, 'ro')),
      delta(2, 'w 2'),
      chunk(row(2)),
      sealed(2),
      status('idle'),
    ],
    null,
  ],
  [
    'an eviction before the row that needs the room',
    [window(rows(1, 20)), evict({ before: 6 }), chunk(row(21))],
    null,
  ],
  ['a row over the limit', [window(rows(1, 20)), chunk(row(21))], /21 rows/],
  [
    'a page over the limit',
    [window(rows(11, 20)), page('older', rows(1, 10)), page('newer', [row(21)])],
    /21 rows/,
  ],
  [
    'bytes over the limit',
    [window(Array.from({ length: 17 }, (_, n) => row(n + 1, { data: { text: 'x'.repeat(16000) } })))],
    /bytes after window/,
  ],
  ['a gap', [window(rows(1, 3)), chunk(row(5))], /touch the window/],
  ['a row twice', [window(rows(1, 3)), chunk(row(3))], /touch the window/],
  ['a gap inside a page', [window([row(1), row(3)])], /contiguous/],
  ['older rows that do not touch', [window(rows(10, 12)), page('older', rows(7, 8))], /touch the window/],
  ['a wrong size', [window([row(1, { bytes: 3 })])], /bytes of row 1/],
  ['a delta without an open chunk', [window([]), start, delta(1, 'x')], /without an open chunk/],
  ['a delta for another chunk', [window([]), start, opened(open(1)), delta(2, 'x')], /another chunk/],
  ['two open chunks', [window([]), start, opened(open(1)), opened(open(2))], /second open chunk/],
  ['an open chunk far below', [window(rows(1, 2)), start, opened(open(4))], /below the newest/],
  [
    'a sealed row of other text',
    [window([]), start, opened(open(1, 'something else')), chunk(row(1))],
    /streamed/,
  ],
  [
    'a seal with an open chunk',
    [window([]), start, chunk(row(1)), opened(open(2)), sealed(1)],
    /with an open chunk/,
  ],
  ['a seal before its rows', [window([]), start, chunk(row(1)), sealed(2)], /sealed up to 2/],
  ['idle before the seal', [window([]), start, chunk(row(1)), status('idle')], /before turn-sealed/],
  ['a turn inside another', [window([]), start, start], /inside another/],
  ['a row of another turn', [window([]), start, chunk(row(1, { turnId: 'u2' }))], /another turn/],
  ['a row of another tab', [window([]), { ...chunk(row(1)), tab: 't2' }], /not visible/],
  ['the newest end taken from a follower', [window(rows(1, 5)), evict({ after: 3 })], /under a follower/],
  [
    'tail for a follower',
    [window(rows(1, 5)), { type: 'tail', tab: 't1', newest: 9, total: 9 }],
    /for readers/,
  ],
  ['a signature', [window([row(1, { data: { text: '', signature: 's' } })])], /left the server/],
  [
    'a tab that runs told to be idle',
    [window([]), start, { type: 'tab', tab: { id: 't1', status: 'idle' } }],
    /told to be idle/,
  ],
  ['an unknown frame', [{ type: 'surprise' }], /unknown frame/],
];

test('the client sees each promise that a server breaks', async (t) => {
  const server = new WebSocketServer({ port: 0, host: '127.0.0.1' });
  t.after(() => server.close());
  await new Promise((done) => server.once('listening', done));
  for (const [name, frames, expected] of CASES) {
    server.removeAllListeners('connection');
    server.on('connection', (socket) => {
      socket.once('message', () => {
        for (const frame of [welcome, ...frames]) socket.send(JSON.stringify(frame));
        socket.close(1000);
      });
    });
    const peer = new Peer(`http://127.0.0.1:${server.address().port}`, { token: 'x' });
    await peer.opened;
    peer.say({ type: 'hello' });
    await peer.closed;
    if (expected) assert.match(peer.fault?.message ?? 'no fault', expected, name);
    else assert.equal(peer.fault, null, name);
  }
});

const call = (seq, callId, more = {}) =>
  row(seq, { type: 'tool_call', data: { callId, name: 'x', arguments: '{}', block: seq, ...more } });
const result = (seq, callId, more = {}) =>
  row(seq, {
    type: 'tool_result',
    role: 'tool',
    data: { callId, name: 'x', result: '', isError: false, ...more },
  });

test('the check of a log sees what must not be in one', () => {
  const good = [
    row(1),
    call(2, 'a'),
    call(3, 'b', { cut: true }),
    result(4, 'a'),
    row(5, { turnId: 'u2' }),
  ];
  assert.equal(checkLog(good).size, 0);
  assert.equal(checkLog(good.slice(0, 2)).size, 1, 'a call that still waits is told');
  assert.throws(() => checkLog([row(1), row(3)]), /gaps/);
  assert.throws(() => checkLog([call(1, 'a'), row(2, { turnId: 'u2' })]), /without a result/);
  assert.throws(() => checkLog([result(1, 'a')]), /without a call/);
  assert.throws(
    () => checkLog([call(1, 'a'), result(2, 'a'), result(3, 'a', { part: 1 })]),
    /without a call/,
  );
  assert.throws(() => checkLog([row(1, { data: { text: 'x', block: 0, part: 1 } })]), /part of row 1/);
  assert.throws(() => checkLog([row(1, { data: { text: 'x'.repeat(17_000), block: 0 } })]), /too big/);
});
