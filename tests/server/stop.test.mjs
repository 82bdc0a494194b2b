// Stop, in every state there is: idle within a second, with nothing left behind, and the history still valid.

import assert from 'node:assert/strict';
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
async function check(siskin, tab, ready, { asked = 'cancelled' } = {}) {
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
    3000,
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

test('stop while a name is being resolved', async (t) => {
  const dir = folder(t);
  // A name server that never answers, in a mount namespace of the server's own.
  const hole = dgram.createSocket('udp4');
  const bound = await new Promise((done) => {
    hole.once('error', () => done(false));
    hole.bind(53, '127.0.0.77', () => done(true));
  });
  t.after(() => {
    if (bound) hole.close();
  });
  const file = path.join(dir, 'resolv.conf');
  fs.writeFileSync(file, 'nameserver 127.0.0.77\noptions timeout:20 attempts:1\n');
  const by = ['unshare', '-m', 'sh', '-c', `mount --bind ${file} /etc/resolv.conf && exec "$@"`, 'sh'];
  const may = bound && (await run(['--version'], { by })).code === 0;
  if (!may) return t.skip('needs root with mount namespaces');
  const asked = new Promise((done) => hole.once('message', done));
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, {
    provider,
    by,
    tables: TABLE('far', 'openai', 'http://no-such-name.example'),
  });
  const tab = await siskin.newTab({ model: 'far/scripted' });
  const peer = await siskin.peer();
  await peer.open(tab.id);
  await siskin.send(tab.id, 'go');
  await asked;
  const began = Date.now();
  await siskin.api('POST', `/api/tabs/${tab.id}/stop`);
  await peer.turns(1, 5000);
  assert.ok(Date.now() - began < 1000, `it took ${Date.now() - began} ms`);
  assert.equal(peer.sealed[0].stopReason, 'cancelled');
  await goOn(siskin, provider, tab, 'a/scripted');
  return undefined;
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

test('stop in an idle tab is no fault, and stops nothing that comes after', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const tab = await siskin.newTab();
  assert.equal((await siskin.api('POST', `/api/tabs/${tab.id}/stop`)).status, 202);
  assert.equal((await siskin.api('POST', '/api/tabs/t99/stop')).status, 404);
  assert.equal((await siskin.turn(tab.id, 'hello', 60_000)).stopReason, 'end');
});
