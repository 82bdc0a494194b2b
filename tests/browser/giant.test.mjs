// One turn of 3,000 chunks (half as many by touch, which is slow) and a limit of 200: what was dropped at the
// end comes back to one who scrolls up, once each and in order, to the first row and down again, while the
// turn runs and after it.

import assert from 'node:assert/strict';
import test, { after } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { keyOf } from '../../static/core/group.js';
import { Siskin, until } from '../fixture.mjs';
import { encode, events, Provider, text, thinking } from '../provider.mjs';
import { ask, log, paired, quit, rested, tokenOf } from './page.mjs';

after(quit);

const LIMIT = 200;

/**
 * An answer that makes `count` rows with its question: half of them at once, then one now and then while
 * somebody reads, and the rest once `open` is called. So the turn runs for as long as reading takes, on any
 * machine.
 */
function gated(count) {
  let open;
  const opened = new Promise((done) => {
    open = done;
  });
  const answer = async (exchange) => {
    const parts = Array.from({ length: count - 1 }, (_, n) =>
      n % 3 ? text(`Answer ${n}, `, `of ${count}.`) : thinking(`thought ${n}`),
    );
    for (const part of parts)
      if (part.signature) exchange.provider.bindings.bind(part.signature, exchange.json);
    const all = events('anthropic', parts);
    await exchange.head();
    const half = Math.ceil(all.length / 2);
    for (let at = 0; at < half; at += 30) {
      await exchange.body(encode(all.slice(at, Math.min(at + 30, half))));
      await sleep(4);
    }
    let at = half;
    const read = opened.then(() => true);
    while (!(await Promise.race([read, sleep(150, false)]))) {
      await exchange.body(encode(all.slice(at, at + 2)));
      at += 2;
    }
    await exchange.body(encode(all.slice(at)));
    exchange.end();
  };
  return { answer, open };
}

/** Looks at each frame: what the log holds, the most that it ever held, and whether its order was wrong. */
async function watch(page) {
  await page.evaluate(() => {
    window.__seen = { most: 0, frames: 0, wrong: [], looks: [] };
    const look = () => {
      const rows = [...document.querySelectorAll('#log .item')].map((node) => node.dataset.key);
      const seqs = rows.map((key) => /^row:(\d+)$/.exec(key)?.[1]).filter(Boolean).map(Number);
      window.__seen.frames += 1;
      window.__seen.most = Math.max(window.__seen.most, rows.length);
      if (seqs.some((seq, at) => at && seq <= seqs[at - 1])) window.__seen.wrong.push(seqs);
      if (rows.join() !== window.__seen.looks.at(-1)?.join()) window.__seen.looks.push(rows);
      requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  });
}

/** The keys of the items, from the top of the page to its end. */
const keys = (page) =>
  log(page).evaluate((node) => [...node.querySelectorAll('.item')].map((item) => item.dataset.key));

const running = (page) => page.getByRole('button', { name: 'Stop' }).isVisible();

/** Ways of a reader; each gives a push up (-1) or down (1). */
const WAYS = {
  wheel: async (page, way) => {
    await page.mouse.wheel(0, way * 2500);
    await sleep(30);
  },
  keys: async (page, way) => {
    for (let n = 0; n < 4; n += 1) await page.keyboard.press(way < 0 ? 'PageUp' : 'PageDown');
    await sleep(60);
  },
  touch: async (page, way) => {
    page.touch ??= await page.context().newCDPSession(page);
    const send = (type, ...touchPoints) =>
      page.touch.send('Input.dispatchTouchEvent', { type, touchPoints });
    const from = 400 + way * 230;
    await send('touchStart', { x: 60, y: from });
    for (let y = 100; y <= 500; y += 100) await send('touchMove', { x: 60, y: from - way * y });
    await send('touchEnd');
    // The finger is gone, and what it threw comes to rest.
    await sleep(250);
  },
};

/** Adds what one look sees to what was seen so far; the two overlap, or rows were missed. */
function join(all, now) {
  assert.equal(new Set(now).size, now.length, 'no row twice');
  const known = new Set(all);
  const first = now.findIndex((key) => known.has(key));
  const last = now.findLastIndex((key) => known.has(key));
  assert.ok(first >= 0, `${now[0]}…${now.at(-1)} does not join ${all[0]}…${all.at(-1)}`);
  const at = all.indexOf(now[first]);
  assert.deepEqual(now.slice(first, last + 1), all.slice(at, at + last + 1 - first), 'in the same order');
  const [before, behind] = [now.slice(0, first), now.slice(last + 1)];
  if (before.length) assert.equal(at, 0, 'nothing was left out above');
  if (behind.length) assert.equal(now[last], all.at(-1), 'nothing was left out below');
  return [...before, ...all, ...behind];
}

/** In the page: two frames go by. */
const frames = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));

/** Scrolls one way until `there` holds; gives the keys of all frames in the order in which they stood. */
async function walk(page, push, way, there, ms = 120_000) {
  const looks = () => page.evaluate(() => window.__seen.looks.splice(0));
  let all = (await looks()).at(-1) ?? (await keys(page));
  const deadline = Date.now() + ms;
  for (;;) {
    const done = await there();
    // What is there may have been drawn in this very frame, which the next one looks at.
    if (done) await page.evaluate(frames);
    for (const look of await looks()) all = join(all, look);
    if (done) return all;
    assert.ok(Date.now() < deadline, `the way ${way < 0 ? 'up' : 'down'} ended at ${all[0]}…${all.at(-1)}`);
    await push(page, way);
  }
}

async function upAndDown(page, push) {
  const isTop = async () => (await keys(page))[0]?.startsWith('user:');
  // At the end one follows again: there is no button to go there.
  const isEnd = async () => !(await page.getByRole('button', { name: /go to the end/i }).isVisible());
  const up = await walk(page, push, -1, isTop);
  const down = await walk(page, push, 1, isEnd);
  return { up, down };
}

for (const [name, way, count, phone] of [
  ['by the wheel, on a desk', 'wheel', 3000, false],
  ['by keys, on a desk', 'keys', 3000, false],
  ['by touch, on a phone', 'touch', 1500, true],
]) {
  test(`${count} chunks of one turn are all reached ${name}, while it runs and after`, async (t) => {
    const provider = await Provider.start();
    t.after(() => provider.stop());
    const siskin = await Siskin.start(t, { provider, wires: ['a'], pair: false });
    const page = await paired(t, siskin, { phone });
    siskin.token = await tokenOf(page);
    await watch(page);
    const turn = gated(count);
    provider.answers = [turn.answer];
    await ask(page, 'Say much');
    const [tab] = (await siskin.get('/api/tabs')).tabs;
    await until(async () => (await siskin.tab(tab.id)).total > count / 2 + 1, 'one half', 60_000);
    if (!phone) await log(page).hover();
    if (way === 'keys') await log(page).focus();

    const live = await upAndDown(page, WAYS[way]);
    assert.ok(await running(page), 'it still ran');
    turn.open();
    await rested(page, 60_000);
    const sealed = await upAndDown(page, WAYS[way]);

    const rows = (await siskin.log(tab.id)).map(keyOf);
    assert.equal(rows.length, count);
    assert.deepEqual(sealed.up, rows, 'all of it on the way up');
    assert.deepEqual(sealed.down, rows, 'all of it on the way down');
    assert.ok(live.up.length > count / 2 && live.down.length >= live.up.length);
    assert.deepEqual(live.up, rows.slice(0, live.up.length), 'and while it ran');
    assert.deepEqual(live.down, rows.slice(0, live.down.length));
    const seen = await page.evaluate(() => window.__seen);
    assert.deepEqual(seen.wrong, [], 'in order at each frame');
    // The one beyond the limit is the open chunk.
    assert.ok(seen.most <= LIMIT + 1 && seen.most > LIMIT / 2, `${seen.most} rows in ${seen.frames} frames`);
    t.diagnostic(`at most ${seen.most} rows in ${seen.frames} frames`);
  });
}
