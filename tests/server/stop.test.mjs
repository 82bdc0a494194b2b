// Stop, in every state there is: idle within a second, with nothing left behind, and the history still valid.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import dgram from 'node:dgram';
import fs from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { folder, run, Siskin, textOf, until } from '../fixture.mjs';
import { call, deafPort, encode, events, mute, Provider, refuse, say, text } from '../provider.mjs';

const WIRES = { anthropic: 'a/scripted', openai: 'o/scripted' };

const TABLE = (name, kind, url) =>
  `[[provider]]\nname = "${name}"\nkind = "${kind}"\nbase_url = "${url}"\n` + 'models = ["scripted"]\n';

/** Starts a turn, waits for `ready`, stops, and checks all that must hold then. */
async function check(siskin, tab, ready, { asked = 'cancelled', backIn = 3000 } = {}) {
  const peer = await siskin.peer();
  await peer.open(tab.id);
  await until(async () => (await siskin.status()).turns === 0 || true, 'a base line');
  await sleep(150);
  const base = { threads: siskin.threads(), fds: siskin.fds() };
  await siskin.send(tab.id, 'go');
  await ready(peer);
  const began = Date.now();
  assert.equal((await siskin.api('POST', `/api/tabs/${tab.id}/stop`)).status, 202);
  await peer.turns(1, 5000);
  const took = Date.now() - began;
  assert.ok(took < 1000, `it took ${took} ms`);
  assert.equal(peer.sealed[0].stopReason, asked);
  assert.equal((await siskin.tab(tab.id)).status, 'idle');
  await until(
    () => siskin.threads() <= base.threads && siskin.fds() <= base.fds,
    'threads and descriptors to be back',
    backIn,
  ).catch((fault) => {
    throw new Error(
      `${fault.message}: ${base.threads}/${base.fds} before, ` +
        `${siskin.threads()}/${siskin.fds()} after`,
    );
  });
  assert.deepEqual(peer.rows, await siskin.log(tab.id));
  peer.drop();
}

/** After a stop the conversation goes on, with a provider that checks. */
async function goOn(siskin, provider, tab, model) {
  if (model) await siskin.api('PATCH', `/api/tabs/${tab.id}`, { model });
  provider.answers = [];
  provider.always = say('fine');
  assert.equal((await siskin.turn(tab.id, 'and now?')).stopReason, 'end');
  assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
}

for (const [wire, model] of Object.entries(WIRES)) {
  const start = async (t, options = {}) => {
    const provider = await Provider.start();
    t.after(() => provider.stop());
    const siskin = await Siskin.start(t, { provider, ...options });
    return { provider, siskin, tab: await siskin.newTab({ model }) };
  };

  test(`${wire}: stop while waiting for headers`, async (t) => {
    const { provider, siskin, tab } = await start(t);
    provider.answers = [mute()];
    await check(siskin, tab, () => provider.next());
    await provider.asked[0].closed;
    await goOn(siskin, provider, tab);
  });

  test(`${wire}: stop while waiting for the first event`, async (t) => {
    const { provider, siskin, tab } = await start(t);
    provider.answers = [
      async (exchange) => {
        await exchange.head();
        await exchange.silent();
      },
    ];
    await check(siskin, tab, () => provider.next().then(() => sleep(50)));
    await goOn(siskin, provider, tab);
  });

  test(`${wire}: stop while streaming text keeps what came`, async (t) => {
    const { provider, siskin, tab } = await start(t);
    provider.answers = [
      say([text(...Array.from({ length: 2000 }, (_, n) => `w${n} `))], { split: 200, pauseMs: 5 }),
    ];
    await check(siskin, tab, (peer) => peer.until(() => peer.text().includes('w20 '), 'some text'));
    assert.match(textOf(await siskin.log(tab.id)), /^w0 w1 w2 /);
    await goOn(siskin, provider, tab);
  });

  test(`${wire}: stop while a stream is silent in the middle`, async (t) => {
    const { provider, siskin, tab } = await start(t);
    const bytes = encode(events(wire, [text('one ', 'two')]));
    provider.answers = [say([text('one ', 'two')], { cutAt: bytes.lastIndexOf('two'), then: 'silent' })];
    await check(siskin, tab, (peer) => peer.until(() => peer.text().includes('one'), 'some text'));
    assert.equal(textOf(await siskin.log(tab.id)), 'one ');
    await goOn(siskin, provider, tab);
  });

  test(`${wire}: stop inside a call's arguments leaves nothing that would be run`, async (t) => {
    const { provider, siskin, tab } = await start(t);
    const parts = [text('I read'), call('system_info', {}), call('read_file', ['{"path":"', 'a"}'])];
    const bytes = encode(events(wire, parts));
    provider.answers = [say(parts, { cutAt: bytes.lastIndexOf('a\\"}'), then: 'silent' })];
    await check(siskin, tab, async (peer) => {
      await peer.until(() => peer.text().includes('I read'), 'some text');
      await sleep(100);
    });
    const rows = await siskin.log(tab.id);
    assert.ok(rows.filter((row) => row.type === 'tool_result').every((row) => row.data.isError));
    await goOn(siskin, provider, tab);
  });

  test(`${wire}: stop while waiting to try again`, async (t) => {
    const { provider, siskin, tab } = await start(t);
    provider.always = refuse(529, { error: { message: 'Overloaded' } }, { 'retry-after': '30' });
    await check(siskin, tab, (peer) => peer.until(() => peer.statuses.includes('retrying'), 'retrying'));
    await goOn(siskin, provider, tab);
  });

  test(`${wire}: stop while connecting to a full backlog`, async (t) => {
    const deaf = await deafPort();
    t.after(() => deaf.stop());
    const { provider, siskin } = await start(t, {
      tables: TABLE('deaf', wire, `http://127.0.0.1:${deaf.port}`),
    });
    const tab = await siskin.newTab({ model: 'deaf/scripted' });
    await check(siskin, tab, () => sleep(300));
    await goOn(siskin, provider, tab, model);
  });

  test(`${wire}: stop in a TLS handshake`, async (t) => {
    const silent = net.createServer((socket) => socket.on('error', () => {}));
    await new Promise((done) => silent.listen(0, '127.0.0.1', done));
    t.after(() => silent.close());
    const accepted = new Promise((done) => silent.once('connection', done));
    const { provider, siskin } = await start(t, {
      tables: TABLE('tls', wire, `https://127.0.0.1:${silent.address().port}`),
    });
    const tab = await siskin.newTab({ model: 'tls/scripted' });
    await check(siskin, tab, async () => {
      (await accepted).on('error', () => {});
      await sleep(100);
    });
    await goOn(siskin, provider, tab, model);
  });

  test(`${wire}: stop while waiting for a slot`, async (t) => {
    const { provider, siskin, tab } = await start(t, { budget: { turns: 1 } });
    const other = await siskin.newTab({ model });
    provider.answers = [mute()];
    await siskin.send(other.id, 'first');
    await provider.next();
    await check(siskin, tab, (peer) => peer.until(() => peer.statuses.includes('waiting'), 'waiting'));
    await siskin.api('POST', `/api/tabs/${other.id}/stop`);
    await siskin.idle(other.id);
    await goOn(siskin, provider, tab);
  });
}

/**
 * A resolver that never answers, as options of a server, and `asked`: once it was asked. As root it is a real
 * one: a name server that is silent, in a mount namespace of the server's own. Otherwise the C library's
 * function is replaced by one that never comes back within a test.
 */
async function silentResolver(t) {
  const dir = folder(t);
  const address = `127.${[0, 0, 0].map(() => 1 + Math.floor(Math.random() * 250)).join('.')}`;
  const hole = dgram.createSocket('udp4');
  const bound = await new Promise((done) => {
    hole.once('error', () => done(false));
    hole.bind(53, address, () => done(true));
  });
  t.after(() => bound && hole.close());
  const file = path.join(dir, 'resolv.conf');
  fs.writeFileSync(file, `nameserver ${address}\noptions timeout:2 attempts:1\n`);
  const by = ['unshare', '-m', 'sh', '-c', `mount --bind ${file} /etc/resolv.conf && exec "$@"`, 'sh'];
  if (bound && (await run(['--version'], { by })).code === 0)
    return { options: { by }, asked: new Promise((done) => hole.once('message', done)) };
  const [source, library, mark] = ['hole.c', 'hole.so', 'asked'].map((name) => path.join(dir, name));
  fs.writeFileSync(
    source,
    `#include <fcntl.h>
    #include <unistd.h>
    int getaddrinfo(const char *a, const char *b, const void *c, void **d) {
      close(open("${mark}", O_CREAT | O_WRONLY, 0600)); sleep(2); return -3; }`,
  );
  execFileSync('cc', ['-shared', '-fPIC', '-o', library, source]);
  const asked = () => until(() => fs.existsSync(mark), 'a lookup');
  return { options: { env: { LD_PRELOAD: library } }, asked: { then: (...done) => asked().then(...done) } };
}

test('stop while a name is being resolved', async (t) => {
  const { options, asked } = await silentResolver(t);
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const tables = TABLE('far', 'openai', 'http://no-such-name.example');
  const siskin = await Siskin.start(t, { provider, ...options, tables });
  const tab = await siskin.newTab({ model: 'far/scripted' });
  // The lookup itself cannot be ended: its thread goes when the resolver's own time is over.
  await check(siskin, tab, () => asked, { backIn: 8000 });
  await goOn(siskin, provider, tab, 'a/scripted');
});

// Bug: a stop while the first model was asked for ended the turn with "stopped" as an error row. Effect: the
// owner was shown a fault. Mend: a turn that was stopped ends as stopped, whatever else failed then.
test('stop while the list of models is asked for', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const silent = await Provider.start();
  t.after(() => silent.stop());
  silent.onConnect = () => false;
  const tables = `[[provider]]\nname = "far"\nkind = "openai"\nbase_url = "${silent.url}"\n`;
  const siskin = await Siskin.start(t, { tables });
  const tab = await siskin.newTab();
  await check(siskin, tab, () => until(() => silent.arrived, 'a connection'));
});

/** The states in which the mixed stops below catch a turn, by the provider's name or the message's text. */
const STATES = {
  resolving: 'far/scripted',
  connecting: 'deaf/scripted',
  handshake: 'tls/scripted',
  headers: mute(),
  'first event': async (exchange) => {
    await exchange.head();
    await exchange.silent();
  },
  streaming: say([text(...Array.from({ length: 3000 }, (_, n) => `w${n} `))], { split: 200, pauseMs: 5 }),
  comments: async (exchange) => {
    await exchange.head();
    while (!exchange.gone) {
      await exchange.body(': ping\n\n');
      await sleep(5);
    }
  },
  'half a call': async (exchange) => {
    const parts = [text('I read '), call('system_info', {}), call('read_file', ['{"path":"', 'a"}'])];
    const bytes = encode(events(exchange.wire, parts));
    await say(parts, { cutAt: bytes.lastIndexOf('a\\"}'), then: 'silent' })(exchange);
  },
  tools: (exchange) =>
    say([text('a '), call('system_info'), call('list_files', { path: '.' })], { split: 150, pauseMs: 1 })(
      exchange,
    ),
  retrying: refuse(529, { error: { message: 'Overloaded' } }, { 'retry-after': '30' }),
};

/** A number from 0 to 1, the same in each run: a failure can be made again. */
function* numbers(seed) {
  for (let state = seed; ; ) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    yield state / 2 ** 32;
  }
}

test('200 stops at random, in every state at once, leave nothing behind', async (t) => {
  const deaf = await deafPort();
  t.after(() => deaf.stop());
  const silent = net.createServer((socket) => socket.on('error', () => {}));
  await new Promise((done) => silent.listen(0, '127.0.0.1', done));
  t.after(() => silent.close());
  const { options } = await silentResolver(t);
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const last = ({ messages }) => JSON.stringify(messages.findLast((one) => one.role === 'user'));
  provider.always = (exchange) => {
    const name = Object.keys(STATES).find((state) => last(exchange.json).includes(`state: ${state};`));
    return STATES[name](exchange);
  };
  const siskin = await Siskin.start(t, {
    provider,
    ...options,
    // Two slots for four tabs: the rest waits for one.
    budget: { turns: 2 },
    tables: [
      TABLE('far', 'openai', 'http://no-such-name.example'),
      TABLE('deaf', 'anthropic', `http://127.0.0.1:${deaf.port}`),
      TABLE('tls', 'openai', `https://127.0.0.1:${silent.address().port}`),
    ].join(''),
  });
  const seen = new Set();
  let slowest = 0;
  const stops = async (tab, random, count) => {
    for (let n = 0; n < count; n += 1) {
      const names = Object.keys(STATES);
      const state = names[Math.floor(random.next().value * names.length)];
      const wire = random.next().value < 0.5 ? 'a' : 'o';
      const model = typeof STATES[state] === 'string' ? STATES[state] : `${wire}/scripted`;
      await siskin.api('PATCH', `/api/tabs/${tab.id}`, { model });
      await siskin.send(tab.id, `state: ${state};`);
      await sleep(random.next().value * 200);
      seen.add((await siskin.tab(tab.id)).status);
      const began = Date.now();
      assert.equal((await siskin.api('POST', `/api/tabs/${tab.id}/stop`)).status, 202);
      await siskin.idle(tab.id, 5000);
      const took = Date.now() - began;
      slowest = Math.max(slowest, took);
      assert.ok(took < 1000, `${state}: it took ${took} ms`);
      const turn = await siskin.lastTurn(tab.id);
      assert.equal(turn.stopReason, 'cancelled', state);
    }
  };
  const tabs = await Promise.all([1, 2, 3, 4].map(() => siskin.newTab()));
  const all = (count, seed) => Promise.all(tabs.map((tab, n) => stops(tab, numbers(seed + n), count)));
  const resting = async (base) => {
    const now = () => ({ threads: siskin.threads(), fds: siskin.fds(), rss: siskin.rss() });
    const back = (one) =>
      one.threads <= base.threads && one.fds <= base.fds && one.rss <= base.rss + 1024 * 1024;
    const what = `rest: ${JSON.stringify(base)} before`;
    return until(() => back(now()) && now(), what, 15_000).catch((fault) => {
      throw new Error(`${fault.message}, ${JSON.stringify(now())} after`);
    });
  };
  const idle = { threads: siskin.threads(), fds: siskin.fds(), rss: Infinity };
  await all(5, 1);
  const base = await resting(idle);
  await sleep(3000);
  base.rss = siskin.rss();
  await all(50, 100);
  const after = await resting({ ...idle, rss: base.rss });
  for (const status of ['running', 'waiting', 'retrying']) assert.ok(seen.has(status), status);
  t.diagnostic(`slowest stop ${slowest} ms; ${JSON.stringify(base)} before, ${JSON.stringify(after)} after`);
  assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
  for (const tab of tabs) await siskin.log(tab.id);
});

test('stop at any moment of a turn with calls leaves a valid history', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  const tab = await siskin.newTab();
  for (let n = 0; n < 25; n += 1) {
    provider.answers = [];
    provider.always = say(
      () => [text('a ', 'b ', 'c '), call('system_info'), call('list_files', { path: '.' })],
      { split: 150, pauseMs: 1 },
    );
    await siskin.send(tab.id, `turn ${n}`);
    await sleep(n * 4);
    await siskin.api('POST', `/api/tabs/${tab.id}/stop`);
    await siskin.idle(tab.id, 2500);
    provider.always = say('fine');
    const turn = await siskin.turn(tab.id, `after ${n}`);
    assert.equal(turn.stopReason, 'end', `after ${n * 4} ms`);
  }
  assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
  await siskin.log(tab.id);
});

for (const [wire, model] of Object.entries(WIRES)) {
  test(`${wire}: stop while a tool runs ends it, and the calls behind it are not run`, async (t) => {
    const provider = await Provider.start();
    t.after(() => provider.stop());
    const siskin = await Siskin.start(t, { provider });
    // Much to search, and little on the disk: one file under many names.
    const first = path.join(siskin.workdir, 'f0');
    fs.writeFileSync(first, 'a line of text that does not have it\n'.repeat(140_000));
    for (let n = 1; n < 48; n += 1) fs.linkSync(first, path.join(siskin.workdir, `f${n}`));
    // With the first one's result the next one runs, unless the stop comes just between two.
    const begun = (peer) => peer.rows.some((row) => row.type === 'tool_result');
    let [tab, caught] = [undefined, false];
    for (let round = 0; round < 5 && !caught; round += 1) {
      tab = await siskin.newTab({ model });
      const queries = Array.from({ length: 12 }, (_, n) => call('search', { query: `needle ${n}` }));
      provider.answers = [say([text('I search.'), ...queries])];
      await check(siskin, tab, (peer) => peer.until(() => begun(peer), 'the first result'), { backIn: 8000 });
      const results = (await siskin.log(tab.id)).filter((row) => row.type === 'tool_result');
      assert.equal(results.length, queries.length);
      assert.match(results.at(-1).data.result, /not run: the turn was stopped before/);
      caught = results.some((row) => /stopped by the owner/.test(row.data.result));
    }
    assert.ok(caught, 'one was ended while it ran');
    await goOn(siskin, provider, tab);
  });
}

test('stop in an idle tab is no fault, and stops nothing that comes after', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const tab = await siskin.newTab();
  assert.equal((await siskin.api('POST', `/api/tabs/${tab.id}/stop`)).status, 202);
  assert.equal((await siskin.api('POST', '/api/tabs/t99/stop')).status, 404);
  assert.equal((await siskin.turn(tab.id, 'hello', 60_000)).stopReason, 'end');
});
