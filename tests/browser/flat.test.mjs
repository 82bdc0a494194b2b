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
/** What is slow is slow each time; what a busy machine does to a page is not. The long form is one try. */
const TRIES = CHUNKS > 20_000 ? 1 : 3;

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
    const [jump, halt] = [/go to the end/i, 'Stop'].map((name) => page.getByRole('button', { name }));
    await throttle(page, THROTTLE);
    await ask(page, wish(EARLY));
    const tab = new URL(page.url()).hash.slice(2);
    if (reading) {
      await until(async () => (await items(page)) > 40, 'something to read');
      await log(page).hover();
      await page.mouse.wheel(0, -4000);
    }
    await rested(page, 120_000);
    const early = await costAtRest(page, siskin);

    let felt;
    for (let n = 0; n < TRIES && felt !== 0; n += 1) {
      const end = await watch.start();
      const began = Date.now();
      await siskin.send(tab, wish(CHUNKS - EARLY));
      await siskin.idle(tab, 3_600_000);
      const took = (Date.now() - began) / 1000;
      await halt.waitFor({ state: 'hidden', timeout: 60_000 });
      const tasks = await end();
      felt = tasks.filter((task) => task.own > LONG_MS).length;
      const longest = tasks.sort((a, b) => b.own - a.own)[0] ?? { own: 0, wall: 0 };
      const rate = Math.round((CHUNKS - EARLY) / took);
      t.diagnostic(
        `${THROTTLE} × throttle, ${rate} chunks/s: tasks over ${LONG_MS} ms: ${tasks.length} by the clock, ` +
          `${felt} by the processor; longest ${longest.own} ms (${longest.wall} by the clock)`,
      );
    }
    assert.equal(await jump.isVisible(), reading);
    const late = await costAtRest(page, siskin);
    t.diagnostic(
      `heap ${early.heap} → ${late.heap}, nodes ${early.nodes} → ${late.nodes}, listeners ` +
        `${early.listeners} → ${late.listeners}`,
    );
    assert.ok(late.heap <= early.heap * GROWTH, `${late.heap} bytes of heap, ${early.heap} before`);
    assert.ok(late.nodes <= early.nodes * GROWTH, `${late.nodes} nodes, ${early.nodes} before`);
    assert.ok(late.listeners <= early.listeners * GROWTH, `${late.listeners} listeners`);
    assert.equal(felt, 0, `no task over ${LONG_MS} ms`);
  });
}
