// What was found by trying to break a server that runs: crowds without a token, models that send what no API
// takes back, floods, and a disk or database that is full in the middle of a turn.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { atEnd, folder, Siskin, until } from '../fixture.mjs';
import { call, Provider, say, text } from '../provider.mjs';
import { Raw } from '../raw.mjs';

const HEAD = 'Host: localhost\r\n';
const PAIR = `POST /api/pair HTTP/1.1\r\n${HEAD}Content-Type: application/json\r\n`;
const MB = 1024 * 1024;

/** Connections that do `first` and come again whenever they are thrown out; gives what sends them away. */
function crowd(t, port, count, first) {
  let over = false;
  const sockets = new Set();
  const come = () => {
    if (over) return;
    const socket = net.connect(port, '127.0.0.1', () => first(socket));
    sockets.add(socket);
    socket.on('error', () => {});
    socket.on('close', () => {
      sockets.delete(socket);
      setTimeout(come, 250);
    });
  };
  for (let n = 0; n < count; n += 1) come();
  const leave = () => {
    over = true;
    sockets.forEach((socket) => socket.destroy());
  };
  atEnd(t, leave);
  return leave;
}

/** Asks a few times, as a browser does; most have to succeed at the first try. */
async function served(siskin, tries = 8) {
  let answered = 0;
  for (let n = 0; n < tries; n += 1) {
    const answer = await siskin.api('GET', '/api/tabs', undefined, { ms: 1000 }).catch(() => null);
    answered += answer?.status === 200;
    await sleep(200);
  }
  assert.ok(answered >= tries - 2, `${answered} of ${tries} requests were answered`);
}

const CROWDS = {
  'bodies that do not come': (socket) => {
    socket.resume();
    socket.write(`${PAIR}Content-Length: 1000\r\n\r\n{`);
  },
  'answers that nobody reads': (socket) => {
    socket.pause();
    socket.write(`GET /main.js HTTP/1.1\r\n${HEAD}\r\n`.repeat(100));
  },
  'heads that do not end': (socket) => {
    socket.resume();
    socket.write(`GET / HTTP/1.1\r\n${HEAD}X: `);
  },
};

// A request without a token was left alone for its first 2 s whatever it waited for, so that a crowd of fresh
// ones held every place and the owner got 503.
for (const [name, first] of Object.entries(CROWDS)) {
  test(`a crowd without a token does not keep the owner out: ${name}`, async (t) => {
    const siskin = await Siskin.start(t, { demo: true });
    const tab = await siskin.newTab();
    const peer = await siskin.peer();
    await peer.open(tab.id);
    crowd(t, siskin.port, 200, first);
    await sleep(500);
    await served(siskin);
    await peer.ping();
    assert.ok(siskin.threads() < 40, `${siskin.threads()} threads`);
  });
}

// Where descriptors end before the budget of connections does, nobody was displaced: idle connections held
// them all, and each newcomer was refused after a rest.
test('with few descriptors idle connections make room for the owner', async (t) => {
  const siskin = await Siskin.start(t, { demo: true, by: ['prlimit', '--nofile=40'] });
  const tab = await siskin.newTab();
  const leave = crowd(t, siskin.port, 100, (socket) => socket.resume());
  await sleep(500);
  await served(siskin);
  // A turn needs descriptors too.
  await until(() => siskin.send(tab.id, 'hello', 'once').catch(() => null), 'the message to be taken');
  await until(async () => (await siskin.idle(tab.id).catch(() => null))?.total > 1, 'the turn to end');
  leave();
  assert.equal((await siskin.lastTurn(tab.id)).stopReason, 'end');
});

async function setUp(t, options = {}) {
  const provider = await Provider.start();
  atEnd(t, () => provider.stop());
  return { provider, siskin: await Siskin.start(t, { provider, budget: { attempts: 2 }, ...options }) };
}

const deep = (levels) => `${'{"a":'.repeat(levels)}1${'}'.repeat(levels)}`;
const ARGUMENTS = {
  NUL: '{"path":"a\\u0000b"}',
  'half a surrogate pair': '{"path":"\\ud800"}',
  'a number beyond all bounds': '{"path":"a","limit":1e999}',
  '10,000 levels': deep(10_000),
};

// Such arguments were called good, because they were skipped and not read. They went back to the provider,
// which refused every later request of that conversation.
for (const [wire, model] of Object.entries({ anthropic: 'a/scripted', openai: 'o/scripted' })) {
  for (const [name, given] of Object.entries(ARGUMENTS)) {
    test(`${wire}: arguments with ${name} do not run, and the conversation goes on`, async (t) => {
      const { provider, siskin } = await setUp(t);
      const tab = await siskin.newTab({ model });
      provider.answers = [say([call('read_file', [given])]), say('I see')];
      assert.equal((await siskin.turn(tab.id, 'read')).stopReason, 'end');
      assert.equal((await siskin.turn(tab.id, 'and now?')).stopReason, 'end');
      assert.deepEqual(provider.asked.map(({ fault }) => fault).filter(Boolean), []);
      assert.equal(provider.fault, undefined);
      const result = (await siskin.log(tab.id)).find((row) => row.type === 'tool_result');
      assert.equal(result.data.isError, true);
      assert.match(result.data.result, /nothing was run/);
    });
  }

  test(`${wire}: a NUL that the owner sends stays in the log and off the wire`, async (t) => {
    const { provider, siskin } = await setUp(t);
    const tab = await siskin.newTab({ model });
    assert.equal((await siskin.turn(tab.id, 'a\0b')).stopReason, 'end');
    assert.equal((await siskin.turn(tab.id, 'more')).stopReason, 'end');
    assert.equal((await siskin.log(tab.id))[0].data.text, 'a\0b');
    assert.match(provider.asked[0].text, /a\ufffdb/);
  });
}

const flood = (mb, piece = 'lorem ipsum '.repeat(150)) => say([
  text(...Array.from({ length: Math.ceil((mb * MB) / piece.length) }, () => piece)),
]);

// The end of a turn that had filled the database found no room either: the turn was tried to be sealed for
// ever, and its tab could not even be purged.
test('a stream that fills the database ends its turn, and a purge gives the room back', async (t) => {
  const { provider, siskin } = await setUp(t, { budget: { attempts: 2, store_bytes: 2 * MB } });
  const tab = await siskin.newTab();
  const peer = await siskin.peer();
  await peer.open(tab.id);
  provider.always = flood(12);
  assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'error');
  const last = (await siskin.log(tab.id)).at(-1);
  assert.equal(last.type, 'error');
  assert.match(last.data.message, /store_bytes/);
  const refused = await siskin.api('POST', '/api/tabs', {});
  assert.equal(refused.status, 507);
  assert.equal((await siskin.api('DELETE', `/api/tabs/${tab.id}?purge=true`)).status, 204);
  provider.always = say('fine');
  assert.equal((await siskin.turn((await siskin.newTab()).id, 'again')).stopReason, 'end');
});

// The housekeeper comes every few seconds; what a fast stream wrote between lay in the write-ahead log, 85 MB
// of it.
test('a flood that nobody reads stays within memory and disk budgets', async (t) => {
  const { provider, siskin } = await setUp(t);
  const tabs = await Promise.all([1, 2, 3].map(() => siskin.newTab()));
  const dead = await Promise.all(tabs.flatMap((tab) => [1, 2, 3].map(() => siskin.peer({ check: false }))));
  await Promise.all(dead.map((peer, at) => peer.open(tabs[at % 3].id)));
  dead.forEach((peer) => peer.socket.pause());
  const rest = { threads: siskin.threads() - dead.length, fds: siskin.fds() - 2 * dead.length };
  provider.always = flood(12);
  let log = 0;
  for (const tab of tabs) await siskin.send(tab.id, 'go');
  const runs = async () => (await siskin.get('/api/tabs')).tabs.some((tab) => tab.status !== 'idle');
  for (let n = 0; await runs(); n += 1) {
    const title = `${n} ${'x'.repeat(200)}`;
    await siskin.api('PATCH', `/api/tabs/${tabs[n % 3].id}`, { title });
    log = Math.max(log, (await siskin.status()).store.walBytes);
  }
  assert.ok(log < 6 * 4 * MB, `a write-ahead log of ${log} bytes`);
  const { memory, budgets } = await siskin.status();
  const limit = budgets.find((budget) => budget.name === 'total_bytes').limit;
  assert.ok(memory.peakRss <= limit, `${memory.peakRss} bytes of memory`);
  dead.forEach((peer) => peer.drop());
  await until(() => siskin.threads() <= rest.threads + 1, 'the threads to end');
  await until(() => siskin.fds() <= rest.fds + 3, 'the descriptors to be given back');
});

// Of a body that was refused only 64 KiB were taken before the connection was closed, and closing with unread
// input resets it: the sender saw no 503, but a broken connection.
test('a large body that is refused gets its answer', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const tab = await siskin.newTab();
  const route = `/api/tabs/${tab.id}/messages`;
  const part = `POST ${route} HTTP/1.1\r\n${HEAD}Authorization: Bearer ${siskin.token}\r\n`;
  const type = 'Content-Type: application/json\r\n';
  const held = await Promise.all([1, 2].map(() => Raw.connect(siskin.port)));
  held.forEach((raw) => raw.write(`${part}${type}Content-Length: 200000\r\n\r\n{`));
  const both = ({ name, used }) => name === 'bodies' && used === 2;
  await until(async () => (await siskin.status()).budgets.some(both), 'two bodies');
  for (const [length, status] of [[200_000, 503], [300_000, 413]]) {
    const socket = net.connect({ port: siskin.port, host: '127.0.0.1', allowHalfOpen: true });
    let [got, fault] = [''];
    socket.on('data', (bytes) => {
      got += bytes;
    });
    socket.on('error', (error) => {
      fault = error;
    });
    socket.write(`${part}${type}Content-Length: ${length}\r\n\r\n`);
    for (let sent = 0; sent < length; sent += 10_000) {
      socket.write('z'.repeat(10_000));
      await sleep(10);
    }
    assert.equal(fault, undefined);
    assert.match(got, new RegExp(`^HTTP/1.1 ${status} `));
    socket.destroy();
  }
  held.forEach((raw) => raw.close());
});

/** A folder on a small disk of its own; skips the test where there is none to be had. */
function disk(t, size) {
  const dir = path.join(folder(t), 'disk');
  fs.mkdirSync(dir);
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${size}`, 'tmpfs', dir], { stdio: 'ignore' });
  } catch {
    t.skip('only root can mount a small disk');
    return null;
  }
  atEnd(t, () => execFileSync('umount', ['-l', dir]));
  return dir;
}

// A turn that could not be sealed was told as `error`, as if it were over, before its `turn-sealed`.
test('a disk that fills in the middle of a turn is told, and the turn ends once there is room', async (t) => {
  const dir = disk(t, '4m');
  if (!dir) return;
  const { provider, siskin } = await setUp(t, { data: path.join(dir, 'data') });
  const tab = await siskin.newTab();
  const peer = await siskin.peer();
  await peer.open(tab.id);
  provider.always = flood(12);
  await siskin.send(tab.id, 'go');
  await peer.until(() => peer.detail, 'the trouble to be told');
  assert.match(peer.detail.message, /no space for .*free it/);
  assert.equal((await siskin.tab(tab.id)).status, 'retrying');
  execFileSync('mount', ['-o', 'remount,size=60m', dir]);
  await peer.turns(1);
  assert.equal(peer.sealed[0].stopReason, 'error');
  provider.always = say('fine');
  assert.equal((await siskin.turn(tab.id, 'again')).stopReason, 'end');
  assert.deepEqual(provider.asked.map(({ fault }) => fault).filter(Boolean), []);
  await siskin.log(tab.id);
});

test('SIGTERM ends in time and with 0 while the disk is full', async (t) => {
  const dir = disk(t, '4m');
  if (!dir) return;
  const { provider, siskin } = await setUp(t, { data: path.join(dir, 'data') });
  const tab = await siskin.newTab();
  provider.always = flood(12);
  await siskin.send(tab.id, 'go');
  await until(async () => (await siskin.tab(tab.id)).status === 'retrying', 'the disk to be full');
  assert.deepEqual(await siskin.signal('SIGTERM', 5000), { code: 0, signal: null });
  execFileSync('mount', ['-o', 'remount,size=60m', dir]);
  await siskin.restart();
  provider.always = say('fine');
  assert.equal((await siskin.turn(tab.id, 'again')).stopReason, 'end');
});

// A number beyond 2^63 became a REAL in the sums of a tab and a day, which no later look could read: the list
// of tabs broke off for good, and `tokens_per_day` refused every turn. Counts are cut to what a request can
// have.
test('a provider that counts more tokens than there can be breaks no list and no limit', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider, config: `tokens_per_day = ${2 ** 50}` });
  for (const huge of [2 ** 62, 2 ** 63, 2 ** 64, 1e300]) {
    const usage = { input: huge, cacheRead: huge, cacheWrite: huge, output: huge };
    provider.always = say([text('ok')], { usage });
    for (const model of ['a/scripted', 'o/scripted']) {
      const tab = await siskin.newTab({ model });
      for (let n = 0; n < 3; n += 1) assert.equal((await siskin.turn(tab.id, 'hi')).stopReason, 'end');
    }
  }
  await siskin.restart();
  assert.equal((await siskin.get('/api/tabs')).tabs.length, 8);
});
