// Windows over the real socket. The peer checks limits, order and contiguity at every frame; here is what
// it is put through.

import assert from 'node:assert/strict';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Siskin, textOf, until } from '../fixture.mjs';
import { Peer } from '../peer.mjs';
import { call, Provider, say, text, thinking } from '../provider.mjs';

async function setUp(t, options = {}) {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider, ...options });
  return { provider, siskin, tab: await siskin.newTab() };
}

/** An answer of `count` chunks: each block is one. */
const chunks = (count, options) =>
  say(
    () =>
      Array.from({ length: count }, (_, n) =>
        n % 2 ? text(`answer ${n}, `, 'and more') : thinking(`thought ${n}`),
      ),
    options,
  );

const lastRows = (rows, count) => rows.slice(-count);

test('a window of 40 never holds more through a turn of 300 chunks', async (t) => {
  const { provider, siskin, tab } = await setUp(t);
  await siskin.api('PUT', '/api/settings', { chunkLimit: 1000 });
  const small = await siskin.peer({ chunkLimit: 40, name: 'small' });
  const large = await siskin.peer({ chunkLimit: 1000, name: 'large' });
  assert.equal(small.limits.chunkLimit, 40);
  await small.open(tab.id);
  await large.open(tab.id);
  provider.answers = [chunks(300, { split: 1200, pauseMs: 2 })];
  await siskin.send(tab.id, 'go');
  await small.turns();
  await large.turns();
  const rows = await siskin.log(tab.id);
  assert.equal(rows.length, 301);
  assert.deepEqual(large.rows, rows);
  assert.ok(small.maxRows <= 40 && small.maxRows >= 35, `${small.maxRows} rows at most`);
  assert.ok(small.rows.length >= 30 - 1, `three quarters are kept: ${small.rows.length}`);
  assert.deepEqual(small.rows, lastRows(rows, small.rows.length));
  assert.ok(small.evicts <= 300 / 10 + 2, `a quarter at once: ${small.evicts} evictions`);
  assert.equal(large.evicts, 0);
});

test('the bytes of a window have their limit too', async (t) => {
  const { provider, siskin, tab } = await setUp(t);
  const small = await siskin.peer({ byteLimit: 256 * 1024, chunkLimit: 1000 });
  assert.equal(small.limits.byteLimit, 256 * 1024);
  await small.open(tab.id);
  provider.always = say(() => [text(...Array.from({ length: 300 }, () => 'é'.repeat(1000)))]);
  await siskin.send(tab.id, 'go');
  await small.turns(1, 30_000);
  const rows = await siskin.log(tab.id);
  assert.ok(rows.reduce((sum, row) => sum + row.bytes, 0) > 500_000);
  assert.ok(small.bytes > 120 * 1024 && small.bytes <= 256 * 1024, `${small.bytes} bytes`);
  assert.deepEqual(small.rows, lastRows(rows, small.rows.length));
});

test('limits are the smaller of client, settings and server, and at least the least', async (t) => {
  const { siskin } = await setUp(t);
  const limits = async (options) => (await siskin.peer({ ...options, check: false })).frames[0].limits;
  assert.equal((await limits({})).chunkLimit, 200);
  assert.equal((await limits({ chunkLimit: 1 })).chunkLimit, 20);
  assert.equal((await limits({ chunkLimit: 1_000_000 })).chunkLimit <= 1000, true);
  assert.equal((await limits({ byteLimit: 1 })).byteLimit, 256 * 1024);
  assert.ok((await limits({ byteLimit: 1e12 })).byteLimit <= 4 * 1024 * 1024);
  assert.equal((await limits({})).chunkBytes, 16 * 1024);
  await siskin.api('PUT', '/api/settings', { chunkLimit: 50 });
  assert.equal((await limits({ chunkLimit: 100 })).chunkLimit, 50);
  assert.equal((await limits({ chunkLimit: 30 })).chunkLimit, 30);
});

async function filled(t, count = 300, options = {}) {
  const all = await setUp(t, options);
  all.provider.answers = [chunks(count)];
  await all.siskin.turn(all.tab.id, 'fill');
  all.rows = await all.siskin.log(all.tab.id);
  return all;
}

test('opening fills to three quarters, and a reload gives the same', async (t) => {
  const { siskin, tab, rows } = await filled(t);
  const first = await siskin.peer({ chunkLimit: 100 });
  const window = await first.open(tab.id);
  assert.ok(window.chunks.length <= first.limits.pageLimit);
  assert.equal(window.total, rows.length);
  assert.equal(window.following, true);
  await first.until(() => first.rows.length >= 75, 'the filling');
  await sleep(100);
  assert.equal(first.rows.length, 75);
  assert.deepEqual(first.rows, lastRows(rows, 75));
  const second = await siskin.peer({ chunkLimit: 100 });
  await second.open(tab.id);
  await second.until(() => second.rows.length >= 75, 'the filling');
  assert.deepEqual(second.rows, first.rows);
});

test('the whole log can be read through a small window, up and down again', async (t) => {
  const { siskin, tab, rows } = await filled(t);
  const peer = await siskin.peer({ chunkLimit: 40 });
  await peer.open(tab.id);
  const up = new Map();
  for (;;) {
    peer.rows.forEach((row) => up.set(row.seq, row));
    const reply = await peer.older(15);
    assert.equal(reply.edge, 'older');
    if (!reply.chunks.length) break;
  }
  assert.equal(peer.rows[0].seq, 1);
  assert.deepEqual(
    [...up.values()].sort((a, b) => a.seq - b.seq),
    rows,
    'every row was seen on the way up',
  );
  const down = new Map();
  for (;;) {
    peer.rows.forEach((row) => down.set(row.seq, row));
    const reply = await peer.newer(15);
    assert.equal(reply.edge, 'newer');
    if (!reply.chunks.length) break;
  }
  assert.equal(peer.newest, rows.length);
  assert.deepEqual(
    [...down.values()].sort((a, b) => a.seq - b.seq),
    rows,
    'and on the way down',
  );
  const back = await peer.follow(true);
  assert.ok(['chunks', 'window'].includes(back.type));
  assert.equal(peer.newest, rows.length);
});

test('a limit of a page is cut, never refused; what is no number is', async (t) => {
  const { siskin, tab } = await filled(t);
  const peer = await siskin.peer({ chunkLimit: 40 });
  await peer.open(tab.id);
  const reply = await peer.older(100_000);
  assert.ok(reply.chunks.length > 0 && reply.chunks.length <= 20, `${reply.chunks.length} rows`);
});

test('around a seq is where one asked for, reading', async (t) => {
  const { siskin, tab, rows } = await filled(t);
  const peer = await siskin.peer({ chunkLimit: 60 });
  const window = await peer.open(tab.id, 150);
  assert.equal(window.following, false);
  await peer.until(() => peer.rows.length >= 45, 'the filling');
  assert.ok(peer.rows.some((row) => row.seq === 150));
  assert.ok(peer.rows[0].seq < 148 && peer.newest > 152, 'both sides');
  assert.deepEqual(peer.rows, rows.slice(peer.rows[0].seq - 1, peer.newest));
  const end = await peer.follow(true);
  assert.equal(end.type, 'window');
  assert.equal(end.base, 'replace');
  assert.equal(peer.newest, rows.length);
});

test('nothing moves under a reader, who is told of what is below', async (t) => {
  const { provider, siskin, tab } = await filled(t, 60);
  const peer = await siskin.peer({ chunkLimit: 40 });
  await peer.open(tab.id);
  await peer.until(() => peer.rows.length >= 30, 'the filling');
  await peer.follow(false);
  const before = peer.rows[0].seq;
  provider.answers = [chunks(100, { split: 2000, pauseMs: 2 })];
  await siskin.send(tab.id, 'more');
  await siskin.idle(tab.id);
  await peer.until(() => peer.tail === 162, 'the last tail');
  assert.equal(peer.rows[0].seq, before, 'the oldest row stays');
  assert.equal(peer.rows.length, 40, 'room is used up');
  const tails = peer.frames.filter((frame) => frame.type === 'tail');
  assert.ok(tails.length <= 6, `${tails.length} tails`);
  await peer.follow(true);
  assert.equal(peer.newest, 162);
  const log = await siskin.log(tab.id);
  assert.deepEqual(peer.rows, lastRows(log, peer.rows.length));
});

test('rows of a turn can be paged back while it still runs', async (t) => {
  const { provider, siskin, tab } = await setUp(t);
  provider.answers = [chunks(300, { split: 3000, pauseMs: 15 })];
  const peer = await siskin.peer({ chunkLimit: 40 });
  await peer.open(tab.id);
  await siskin.send(tab.id, 'go');
  await peer.until(() => peer.newest > 60, 'some rows');
  for (let n = 0; n < 3; n += 1) await peer.older(20);
  assert.equal((await siskin.tab(tab.id)).status, 'running');
  assert.equal(peer.rows[0].seq < 30, true);
  await peer.follow(true);
  await peer.turns();
  assert.equal(peer.newest, 301);
});

test('lost connections in the middle of a turn lose and double nothing', async (t) => {
  const { provider, siskin, tab } = await setUp(t);
  const words = Array.from({ length: 3000 }, (_, n) => `word${n} `);
  provider.answers = [
    say([text(...words.slice(0, 1500)), call('system_info'), text(...words.slice(1500))], {
      split: 4000,
      pauseMs: 6,
    }),
    chunks(40, { split: 300, pauseMs: 2 }),
  ];
  let peer = await siskin.peer({ name: 'first' });
  await peer.open(tab.id);
  await siskin.send(tab.id, 'go');
  for (let n = 0; n < 8; n += 1) {
    await sleep(40 + n * 13);
    peer.drop();
    await sleep(n * 7);
    const from = peer;
    peer = new Peer(siskin.url, { token: siskin.token, from, name: `resumed ${n}` });
    siskin.peers.push(peer);
    await peer.hello();
    await peer.until(() => peer.frames.some((frame) => frame.type === 'window'), 'the window');
    assert.equal(peer.frames.find((frame) => frame.type === 'window').req, undefined);
  }
  await peer.until(
    () => ['idle', 'error'].includes(peer.statuses.at(-1)) || peer.live === undefined,
    'the end',
  );
  await siskin.idle(tab.id);
  await peer.ping();
  const rows = await siskin.log(tab.id);
  assert.deepEqual(peer.rows, rows);
  assert.ok(textOf(rows).startsWith(words.join('')));
});

test('a reader keeps the place over a reconnect, also to a server that is new', async (t) => {
  const { siskin, tab } = await filled(t, 200);
  const peer = await siskin.peer({ chunkLimit: 60 });
  await peer.open(tab.id, 80);
  await peer.until(() => peer.rows.length >= 45, 'the filling');
  peer.drop();
  const again = new Peer(siskin.url, { token: siskin.token, from: peer, name: 'again' });
  siskin.peers.push(again);
  await again.hello();
  const kept = await again.until(() => again.frames.find((frame) => frame.type === 'window'), 'the window');
  assert.deepEqual([again.resumed, kept.base, kept.following], [true, 'keep', false]);
  assert.equal(again.rows[0].seq, peer.rows[0].seq);
  await siskin.restart();
  const fresh = new Peer(siskin.url, { token: siskin.token, from: again, name: 'fresh' });
  siskin.peers.push(fresh);
  await fresh.hello();
  const replaced = await fresh.until(
    () => fresh.frames.find((frame) => frame.type === 'window'),
    'the window',
  );
  assert.deepEqual([fresh.resumed, replaced.base, replaced.following], [false, 'replace', false]);
  assert.notEqual(fresh.epoch, again.epoch);
  assert.ok(
    fresh.rows.some((row) => row.seq === again.rows[0].seq),
    'around the oldest row that was held',
  );
});

test('who comes back late gets the rest, and that it is over', async (t) => {
  const { provider, siskin, tab } = await setUp(t);
  const peer = await siskin.peer();
  await peer.open(tab.id);
  provider.answers = [say([text('a ', 'b ', 'c')], { split: 100, pauseMs: 20 })];
  await siskin.send(tab.id, 'go');
  await peer.until(() => peer.text().includes('a'), 'some text');
  peer.drop();
  await siskin.idle(tab.id);
  const again = new Peer(siskin.url, { token: siskin.token, from: peer });
  siskin.peers.push(again);
  await again.hello();
  await again.until(() => again.newest === 2, 'the rest');
  const window = again.frames.find((frame) => frame.type === 'window');
  assert.deepEqual([again.resumed, window.base, window.live], [true, 'keep', undefined]);
  assert.equal(again.tabs.get(tab.id).status, 'idle');
  assert.deepEqual(again.rows, await siskin.log(tab.id));
});

test('a follower who missed more than a page gets the tail', async (t) => {
  const { provider, siskin, tab } = await filled(t, 20);
  const peer = await siskin.peer({ chunkLimit: 1000 });
  await peer.open(tab.id);
  peer.drop();
  provider.answers = [chunks(700)];
  await siskin.turn(tab.id, 'much more');
  const again = new Peer(siskin.url, { token: siskin.token, from: peer });
  siskin.peers.push(again);
  await again.hello();
  const window = await again.until(
    () => again.frames.find((frame) => frame.type === 'window'),
    'the window',
  );
  assert.deepEqual([window.base, window.following], ['replace', true]);
  assert.equal(again.newest, 722);
});

test('new limits take hold at once, evictions first', async (t) => {
  const { siskin, tab, rows } = await filled(t);
  const peer = await siskin.peer();
  await peer.open(tab.id);
  await peer.until(() => peer.rows.length >= 150, 'the filling');
  const told = peer.frame((frame) => frame.type === 'limits');
  await siskin.api('PUT', '/api/settings', { chunkLimit: 40 });
  await told;
  assert.equal(peer.limits.chunkLimit, 40);
  assert.ok(peer.rows.length <= 40);
  assert.equal(peer.newest, rows.length);
});

test('only the visible tab streams; of the others one hears that they run', async (t) => {
  const { provider, siskin, tab } = await setUp(t);
  const other = await siskin.newTab();
  const peer = await siskin.peer();
  await peer.open(tab.id);
  provider.answers = [chunks(10, { split: 200, pauseMs: 1 })];
  await siskin.turn(other.id, 'go');
  await peer.ping();
  const seen = peer.frames
    .filter((frame) => (frame.tab?.id ?? frame.tab) === other.id)
    .map((frame) => frame.type);
  assert.ok(seen.includes('status'));
  assert.ok(
    !seen.some((type) => ['chunk', 'chunk-open', 'chunk-delta', 'window', 'chunks'].includes(type)),
    `${seen}`,
  );
  assert.equal(peer.tabs.get(other.id).status, 'idle');
  await peer.open(other.id);
  assert.equal(peer.newest, 11);
});

test('switching to and fro while two tabs stream mixes nothing', async (t) => {
  const { provider, siskin, tab } = await setUp(t);
  const tabs = [tab, await siskin.newTab()];
  provider.always = chunks(120, { split: 400, pauseMs: 3 });
  const peer = await siskin.peer({ chunkLimit: 40 });
  for (const one of tabs) await siskin.send(one.id, 'go');
  for (let n = 0; n < 20; n += 1) {
    await peer.open(tabs[n % 2].id);
    await sleep(15);
  }
  for (const one of tabs) {
    await siskin.idle(one.id);
    await peer.open(one.id);
    await peer.until(() => peer.rows.length >= 30, 'the filling');
    const log = await siskin.log(one.id);
    assert.deepEqual(peer.rows, lastRows(log, peer.rows.length));
  }
});

test('wrong frames are answered, a few more end the socket', async (t) => {
  const { siskin, tab } = await setUp(t);
  const peer = await siskin.peer({ check: false });
  const cases = [
    { type: 'older', tab: tab.id, req: 1 },
    { type: 'open', tab: 't99', req: 2 },
    { type: 'nonsense', req: 3 },
  ];
  for (const wrong of cases) {
    const answer = peer.frame((frame) => frame.type === 'error');
    peer.say(wrong);
    const { code, req, message } = await answer;
    assert.ok(code && message, JSON.stringify(wrong));
    assert.equal(req, wrong.req);
    if (wrong.type === 'older') assert.equal(code, 'not_open');
  }
  for (let n = 0; n < 20; n += 1) peer.say({ type: 'nonsense' });
  assert.equal((await peer.closed).code, 1008);
  for (const frame of ['no json', '[]', '{"type":1}', '{}']) {
    const other = await siskin.peer({ check: false });
    const answer = other.frame((got) => got.type === 'error');
    other.socket.send(frame);
    await answer;
    other.drop();
  }
});

test('a frame that is too large, or not text, ends the socket', async (t) => {
  const { siskin } = await setUp(t);
  const large = await siskin.peer({ check: false });
  large.socket.send(JSON.stringify({ type: 'ping', n: 1, pad: 'x'.repeat(5000) }));
  assert.ok([1008, 1009].includes((await large.closed).code));
  const binary = await siskin.peer({ check: false });
  binary.socket.send(Buffer.from([1, 2, 3]));
  assert.ok([1003, 1007, 1008].includes((await binary.closed).code));
  assert.equal((await siskin.status()).panics, 0);
});

test('the first frame is hello, in time', async (t) => {
  const { siskin } = await setUp(t, { budget: { hello_ms: 500 } });
  const other = new Peer(siskin.url, {});
  await other.opened;
  other.say({ type: 'ping', n: 1 });
  assert.ok([1008, 4401].includes((await other.closed).code));
  const mute = new Peer(siskin.url, {});
  await mute.opened;
  assert.ok([1008, 4401].includes((await mute.closed).code));
});

test('a client that never reads costs the others nothing, and little memory', async (t) => {
  const { provider, siskin, tab } = await setUp(t);
  const dead = await siskin.peer({ name: 'dead' });
  const quick = await siskin.peer({ name: 'quick' });
  await dead.open(tab.id);
  await quick.open(tab.id);
  dead.socket._socket.pause();
  provider.always = say(() => [text(...Array.from({ length: 5000 }, () => 'word '.repeat(200)))]);
  const began = Date.now();
  await siskin.send(tab.id, 'go');
  await quick.turns(1, 60_000);
  const took = Date.now() - began;
  assert.ok(took < 30_000, `5 MB took ${took} ms`);
  assert.ok(siskin.rss() < 16 * 1024 * 1024, `${siskin.rss()} bytes of RSS`);
  const rows = await siskin.log(tab.id);
  assert.deepEqual(quick.rows, lastRows(rows, quick.rows.length));
  dead.socket._socket.resume();
  await until(
    () => dead.end || dead.newest === rows.length,
    'the slow one to be up to date, or out',
    30_000,
  );
});

test('many clients see the same', async (t) => {
  const { provider, siskin, tab } = await setUp(t);
  const peers = await Promise.all(
    Array.from({ length: 12 }, (_, n) => siskin.peer({ chunkLimit: 20 + n * 15, name: `p${n}` })),
  );
  for (const peer of peers) await peer.open(tab.id);
  provider.answers = [chunks(120, { split: 500, pauseMs: 1 })];
  await siskin.send(tab.id, 'go');
  await Promise.all(peers.map((peer) => peer.turns(1, 30_000)));
  const rows = await siskin.log(tab.id);
  for (const peer of peers) assert.deepEqual(peer.rows, lastRows(rows, peer.rows.length));
});
