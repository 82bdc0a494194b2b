// Ends of the server at any moment: what was promised is there, the log is valid, and a strict provider
// takes it.

import assert from 'node:assert/strict';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { checkLog, Siskin, textOf } from '../fixture.mjs';
import { assertPrefix } from '../body.mjs';
import { call, Provider, say, text, thinking } from '../provider.mjs';

const ROUNDS = Number(process.env.SISKIN_KILLS ?? 40);

/** The same numbers again for the same seed, which a failure names. */
function random(seed) {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state % below;
  };
}

const busy = (exchange) =>
  say(
    exchange.json.messages.length % 4 === 3
      ? [thinking('so'), text('done ', 'with it.')]
      : [
          thinking('hm ', 'well'),
          text('I look. ', 'x'.repeat(300)),
          call('list_files', { path: '.' }),
          call('system_info'),
          call('read_file', { path: 'a'.repeat(20_000) }),
        ],
    { split: 400, pauseMs: 1 },
  )(exchange);

for (const [wire, model] of [
  ['anthropic', 'a/scripted'],
  ['openai', 'o/scripted'],
]) {
  test(`${wire}: killed at any moment, it goes on as if nothing was`, async (t) => {
    const seed = Number(process.env.SISKIN_SEED ?? Date.now() % 1e6);
    const next = random(seed);
    const provider = await Provider.start();
    t.after(() => provider.stop());
    const siskin = await Siskin.start(t, { provider });
    const tab = await siskin.newTab({ model });
    let turns = 0;
    for (let round = 0; round < ROUNDS / 2; round += 1) {
      const where = `seed ${seed}, round ${round}`;
      provider.always = busy;
      const peer = await siskin.peer({ name: where });
      await peer.open(tab.id);
      const sent = `message ${round}`;
      const pending = siskin
        .api('POST', `/api/tabs/${tab.id}/messages`, { clientId: `killed-${round}`, text: sent })
        .catch(() => null);
      await sleep(next(120));
      await siskin.kill();
      const acknowledged = (await pending)?.status === 202;
      const told = peer.frames.filter((frame) => frame.type === 'chunk').map((frame) => frame.chunk);
      const open = peer.open_;
      await siskin.restart();
      const rows = await siskin.log(tab.id);
      assert.deepEqual([...checkLog(rows).keys()], [], `${where}: every call has its result`);
      for (const row of told)
        assert.deepEqual(rows[row.seq - 1], row, `${where}: a row that was told is there`);
      if (acknowledged) {
        const mine = rows.filter((row) => row.data.clientId === `killed-${round}`);
        assert.deepEqual(
          mine.map((row) => row.data.text),
          [sent],
          `${where}: an acknowledged message is there, once`,
        );
      }
      assert.ok(!open || rows.length >= open.seq - 1, `${where}: at most the open chunk is lost`);
      assert.equal((await siskin.tab(tab.id)).status, 'idle', where);
      const last = await siskin.lastTurn(tab.id);
      if (last) {
        assert.ok(['done', 'interrupted'].includes(last.status), `${where}: ${last.status}`);
        if (last.status === 'interrupted') assert.equal(last.stopReason, 'interrupted');
      }
      if (next(3) === 0) {
        provider.always = say('fine');
        const turn = await siskin.turn(tab.id, `after ${round}`);
        assert.equal(turn.stopReason, 'end', where);
        turns += 1;
      }
    }
    provider.always = say('fine');
    assert.equal((await siskin.turn(tab.id, 'the end')).stopReason, 'end');
    assert.ok(turns >= 0);
    assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), [], `seed ${seed}`);
    const bodies = provider.asked.map((request) => request.text);
    bodies.slice(1).forEach((body, n) => assertPrefix(bodies[n], body));
  });
}

test('a tool runs at most once, whatever is repeated', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  const tab = await siskin.newTab();
  provider.answers = [
    say([call('system_info')]),
    async (exchange) => {
      await exchange.head();
      await siskin.kill();
    },
  ];
  await siskin.send(tab.id, 'go');
  await siskin.ended;
  await siskin.restart();
  assert.equal((await siskin.turn(tab.id, 'and?')).stopReason, 'end');
  const rows = await siskin.log(tab.id);
  assert.equal(rows.filter((row) => row.type === 'tool_result' && 'isError' in row.data).length, 1);
  assert.equal(rows.filter((row) => row.data.kind === 'interrupted').length, 1);
});

test('SIGTERM seals what runs, says goodbye, and ends with 0', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  const tab = await siskin.newTab();
  const idle = await siskin.newTab();
  const peer = await siskin.peer();
  await peer.open(tab.id);
  provider.answers = [
    say([text(...Array.from({ length: 1000 }, (_, n) => `w${n} `))], { split: 300, pauseMs: 10 }),
  ];
  await siskin.send(tab.id, 'go');
  await peer.until(() => peer.text().includes('w9 '), 'some text');
  const began = Date.now();
  const end = await siskin.stop();
  assert.deepEqual(end, { code: 0, signal: null });
  assert.ok(Date.now() - began < 5000);
  assert.equal((await peer.closed).code, 1001);
  await siskin.restart();
  const rows = await siskin.log(tab.id);
  assert.match(textOf(rows), /^w0 w1 w2 .*w9 /);
  assert.ok(textOf(rows).startsWith(peer.text()), 'the open chunk was sealed, not lost');
  const turn = await siskin.lastTurn(tab.id);
  assert.deepEqual([turn.status, turn.stopReason], ['interrupted', 'interrupted']);
  assert.equal((await siskin.tab(idle.id)).status, 'idle');
  assert.equal((await siskin.turn(tab.id, 'go on')).stopReason, 'end');
  assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
});

test('SIGTERM ends in time whatever goes on', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  const peers = await Promise.all(Array.from({ length: 6 }, () => siskin.peer({ check: false })));
  peers.forEach((peer) => peer.socket._socket.pause());
  provider.always = (exchange) => exchange.silent();
  for (let n = 0; n < 4; n += 1) await siskin.send((await siskin.newTab()).id, 'go');
  const began = Date.now();
  assert.deepEqual(await siskin.stop(), { code: 0, signal: null });
  assert.ok(Date.now() - began < 5000, `${Date.now() - began} ms`);
});

test('a later request begins with the earlier one, over turns, stops and restarts', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  for (const model of ['a/scripted', 'o/scripted']) {
    const from = provider.asked.length;
    const tab = await siskin.newTab({ model });
    for (let n = 0; n < 8; n += 1) {
      provider.always = say('fine');
      provider.answers = [
        say(() => [thinking('hm'), text('look é'), call('system_info'), call('list_files', { path: '.' })]),
      ];
      if (n % 4 === 1) provider.answers.push((exchange) => exchange.silent());
      if (n % 4 === 2) provider.answers = [say([text('half ', 'of it')], { cutAt: 700, then: 'silent' })];
      await siskin.send(tab.id, `turn ${n}`);
      if (n % 4 === 1 || n % 4 === 2) {
        await sleep(250);
        await siskin.api('POST', `/api/tabs/${tab.id}/stop`);
      }
      await siskin.idle(tab.id);
      if (n % 4 === 3) await siskin.restart();
      // A new system prompt is for new tabs; this one keeps the bytes that it began with.
      if (n === 4) await siskin.api('PUT', '/api/settings', { systemPrompt: `Other ${model}` });
    }
    const bodies = provider.asked.slice(from).map((request) => request.text);
    assert.ok(bodies.length >= 12);
    bodies.slice(1).forEach((body, n) => assertPrefix(bodies[n], body));
  }
  assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
});
