// The disk: one fsync in the path of a turn, counted by the kernel and by the server; and memory that stays
// flat.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { folder, run, Siskin, until } from '../fixture.mjs';
import { call, Provider, say, text } from '../provider.mjs';

const sum = (store) => store.turnSyncs + store.checkpointSyncs + store.otherSyncs;

test('a hundred turns are a hundred fsyncs in their path', async (t) => {
  const traced =
    (
      await run(['--version'], { by: ['strace', '-f', '-o', '/dev/null', '-e', 'trace=fsync'] }).catch(
        () => ({ code: 1 }),
      )
    ).code === 0;
  const file = path.join(folder(t), 'trace');
  const provider = await Provider.start();
  t.after(() => provider.stop());
  // Every second request is answered by two calls and a text of several chunks, so a turn is many commits.
  provider.always = (exchange) =>
    say(
      /tool_result/.test(JSON.stringify(exchange.json.messages.at(-1)))
        ? [text('done ', 'and ', 'done')]
        : [text('x'.repeat(17_000), 'y'), call('system_info'), call('list_files', { path: '.' })],
    )(exchange);
  const siskin = await Siskin.start(t, {
    provider,
    by: traced
      ? ['strace', '-f', '-y', '-o', file, '-e', 'trace=fsync,fdatasync,sync_file_range,msync']
      : [],
  });
  const tab = await siskin.newTab();
  const before = (await siskin.status()).store;
  const [, house] = siskin.threadsByName().find(([name]) => name.startsWith('housekeep'));
  // Each call once, by the thread that made it.
  const synced = () => fs.readFileSync(file, 'utf8').match(/^\d+(?= +(fsync|fdatasync)\()/gm) ?? [];
  const from = traced ? synced().length : 0;
  for (let n = 0; n < 100; n += 1) {
    assert.equal((await siskin.turn(tab.id, `turn ${n}`, 60_000)).stopReason, 'end');
  }
  const after = (await siskin.status()).store;
  assert.equal(after.sealedTurns - before.sealedTurns, 100);
  assert.equal(after.turnSyncs - before.turnSyncs, 100);
  await sleep(200);
  if (traced) {
    const threads = synced().slice(from);
    const kept = threads.filter((thread) => thread === house).length;
    assert.equal(threads.length - kept, 100, 'the kernel counts what is not the housekeeper');
    const said = sum(after) - sum(before) - 100;
    assert.ok(Math.abs(kept - said) <= 1 + kept / 4, `the housekeeper made ${kept}, and says ${said}`);
    assert.ok(kept <= 40, `${kept} syncs of the housekeeper`);
  } else t.diagnostic('strace is not allowed here: only the server counted');
  assert.ok(after.walBytes <= 4.5 * 1024 * 1024);
});

test('memory does not grow with the conversation', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  const tab = await siskin.newTab({ model: 'o/scripted' });
  const answer = () => [text(...Array.from({ length: 100 }, () => 'word '.repeat(200)))];
  provider.always = say(answer);
  for (let n = 0; n < 5; n += 1) await siskin.turn(tab.id, 'warm up');
  const small = siskin.rss();
  for (let n = 0; n < 40; n += 1) await siskin.turn(tab.id, 'x'.repeat(20_000), 60_000);
  const grown = siskin.rss() - small;
  assert.ok(
    provider.asked.at(-1).bytes.length > 4_000_000,
    `${provider.asked.at(-1).bytes.length} bytes in the last request`,
  );
  assert.ok(grown < 1024 * 1024, `${grown} bytes more after 40 turns of 120 KB`);
});

test('a server without anything to do is small and quiet', async (t) => {
  const siskin = await Siskin.start(t, {});
  await siskin.newTab();
  // Code that only the start needs is given back once it rests.
  const small = 5 * 1024 * 1024;
  await until(() => siskin.rss() <= small, 'at most 5 MiB', 15_000).catch((fault) => {
    throw new Error(`${fault.message}, but it has ${siskin.rss() / 1024} KiB`);
  });
  const threads = siskin.threads();
  assert.ok(threads <= 8, `${threads} threads`);
  const { memory, budgets, panics, clockOk } = await siskin.status();
  assert.ok(Math.abs(memory.rss - siskin.rss()) < 1024 * 1024);
  assert.ok(memory.peakRss >= memory.rss - 4096 && memory.peakHeap >= memory.heap);
  assert.equal(panics, 0);
  assert.equal(clockOk, true);
  const connections = budgets.find((budget) => budget.name === 'connections');
  assert.deepEqual([connections.limit, connections.unit], [24, 'count']);
  assert.ok(connections.used >= 1 && connections.peak >= connections.used);
});
