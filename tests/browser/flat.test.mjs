// An open page costs the same however much streams into it: heap, nodes, and tasks short enough for an old
// phone, at the end and for one who reads. `SISKIN_CHUNKS=100000` is the long form.

import assert from 'node:assert/strict';
import test, { after } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Siskin, until } from '../fixture.mjs';
import { cost, LONG_MS, taskWatch, throttle } from './measure.mjs';
import { ask, log, paired, quit, rested, tokenOf } from './page.mjs';

after(quit);

const CHUNKS = Number(process.env.SISKIN_CHUNKS ?? 10_000);
/** What the later figures are compared with is taken here. */
const EARLY = 2000;
const THROTTLE = 4;
const GROWTH = 1.1;

const wish = (count) => `Stream ${count} chunks of 30 bytes with 1 ms`;
const items = (page) => page.evaluate(() => document.querySelectorAll('#log .item').length);

/** Brings the window to the same size each time, and gives what the page costs then. */
async function costAtRest(page, siskin) {
  for (const chunkLimit of [100, 200]) {
    await siskin.api('PUT', '/api/settings', { chunkLimit });
    await sleep(300);
  }
  await until(async () => (await items(page)) === 75, 'the window to be three quarters of 100 rows');
  return cost(page);
}

for (const reading of [false, true]) {
  test(`${CHUNKS} chunks ${reading ? 'below a reader' : 'at the end'} cost what ${EARLY} do`, async (t) => {
    const siskin = await Siskin.start(t, { demo: true, pair: false });
    const page = await paired(t, siskin);
    siskin.token = await tokenOf(page);
    const watch = await taskWatch(page);
    await throttle(page, THROTTLE);
    await ask(page, wish(EARLY));
    const early0 = await watch.start();
    if (reading) {
      await until(async () => (await items(page)) > 40, 'something to read');
      await log(page).hover();
      await page.mouse.wheel(0, -4000);
    }
    await rested(page, 120_000);
    const tasks = await early0();
    const early = await costAtRest(page, siskin);

    const [tab] = (await siskin.get('/api/tabs')).tabs;
    const endWatch = await watch.start();
    const began = Date.now();
    await siskin.send(tab.id, wish(CHUNKS - EARLY));
    await siskin.idle(tab.id, 3_600_000);
    const took = (Date.now() - began) / 1000;
    await rested(page, 60_000);
    tasks.push(...(await endWatch()));
    const jump = page.getByRole('button', { name: /go to the end/i });
    assert.equal(await jump.isVisible(), reading);
    const late = await costAtRest(page, siskin);

    const longest = tasks.reduce((most, task) => (task.own > most.own ? task : most), { own: 0, wall: 0 });
    t.diagnostic(
      `heap ${early.heap} → ${late.heap}, nodes ${early.nodes} → ${late.nodes}, listeners ` +
        `${early.listeners} → ${late.listeners}; tasks over ${LONG_MS} ms at ${THROTTLE} × throttle: ` +
        `${tasks.length}, longest ${longest.own} ms (${longest.wall} with waiting); ` +
        `${Math.round((CHUNKS - EARLY) / took)} chunks/s`,
    );
    assert.ok(late.heap <= early.heap * GROWTH, `${late.heap} bytes of heap, ${early.heap} before`);
    assert.ok(late.nodes <= early.nodes * GROWTH, `${late.nodes} nodes, ${early.nodes} before`);
    assert.ok(late.listeners <= early.listeners * GROWTH, `${late.listeners} listeners`);
    assert.deepEqual(
      tasks.filter((task) => task.own > LONG_MS),
      [],
      'no task is felt',
    );
  });
}
