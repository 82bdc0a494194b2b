// The page's window on a long, running turn: never more rows than the limit, at any moment, and beside them
// at most the one chunk that still grows, which is no row yet; nothing moves under a reader; all that was
// dropped can be read again.

import assert from 'node:assert/strict';
import test, { after } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Siskin, until } from '../fixture.mjs';
import { ask, log, paired, quit, rested, said } from './page.mjs';

after(quit);

const LIMIT = 200;

/** Watches every change of the page, not only what a look now and then would see. */
async function watch(page) {
  await page.evaluate(() => {
    window.__most = 0;
    const look = () => {
      const items = document.querySelectorAll('#log .item').length;
      const growing = document.querySelector('.halt').hidden ? 0 : 1;
      window.__most = Math.max(window.__most, items - growing);
    };
    new MutationObserver(look).observe(document.querySelector('#log'), { childList: true, subtree: true });
  });
  return () => page.evaluate(() => window.__most);
}

const number = (text) => Number(/Chunk (\d+) of/.exec(text)?.[1] ?? 0);
const toEnd = (page) =>
  log(page).evaluate((node) => node.scrollHeight - node.scrollTop - node.clientHeight);

/** Goes up by the wheel until `text` is seen. */
async function upTo(page, text) {
  await log(page).hover();
  await until(
    async () => {
      await page.mouse.wheel(0, -4000);
      await sleep(40);
      return log(page).getByText(text).first().isVisible();
    },
    `${text} further up`,
    30_000,
  );
}

for (const phone of [false, true]) {
  const size = phone ? 'on a phone' : 'on a desk';

  test(`${size}: 500 chunks at the end keep the page within its limit, and the end in view`, async (t) => {
    const siskin = await Siskin.start(t, { demo: true, pair: false });
    const page = await paired(t, siskin, { phone });
    const most = await watch(page);
    await ask(page, 'Stream 500 chunks of 90 bytes with 2 ms');
    for (let n = 0; n < 8; n += 1) {
      await sleep(300);
      assert.ok((await toEnd(page)) <= 2, 'the end is in view');
    }
    await rested(page, 60_000);
    assert.ok((await most()) <= LIMIT, `${await most()} rows`);
    assert.ok((await most()) > LIMIT / 2, `${await most()} rows: the limit was put to the test`);
    assert.ok((await toEnd(page)) <= 2);
    const before = await said(page);
    assert.ok(before.length <= LIMIT, `${before.length} rows at rest`);
    assert.equal(number(before.at(-1)), 500);
    const inOrder = before.map(number).filter(Boolean);
    inOrder.forEach((n, at) => assert.equal(n, inOrder[0] + at, 'no gap, nothing twice'));

    await page.reload();
    await until(async () => number((await said(page)).at(-1) ?? '') === 500, 'the last row after a reload');
    assert.deepEqual((await said(page)).slice(-100), before.slice(-100));
  });
}

test('nothing moves under a reader while a turn fills the window and goes on', async (t) => {
  const siskin = await Siskin.start(t, { demo: true, pair: false });
  const page = await paired(t, siskin);
  const most = await watch(page);
  await ask(page, 'Stream 700 chunks of 90 bytes with 3 ms');
  await log(page).getByText('Chunk 40 of 700').waitFor({ timeout: 20_000 });
  await log(page).hover();
  await page.mouse.wheel(0, -900);
  await sleep(200);
  const place = () =>
    log(page).evaluate((node) => {
      const edge = node.getBoundingClientRect().top;
      const first = [...node.querySelectorAll('.item')].find(
        (one) => one.getBoundingClientRect().bottom > edge,
      );
      return `${first.innerText.slice(0, 16)} at ${Math.round(first.getBoundingClientRect().top - edge)}`;
    });
  const at = await place();
  const jump = page.getByRole('button', { name: /go to the end/i });
  while (await page.getByRole('button', { name: 'Stop' }).isVisible()) {
    assert.equal(await place(), at);
    await sleep(60);
  }
  assert.equal(await place(), at);
  assert.match(await jump.innerText(), /[1-9]\d* new/);
  assert.ok((await most()) <= LIMIT, `${await most()} rows while reading`);

  await jump.click();
  await log(page).getByText('Chunk 700 of 700').waitFor();
  assert.ok((await toEnd(page)) <= 2);
  await upTo(page, 'Stream 700 chunks');
  assert.ok((await most()) <= LIMIT, `${await most()} rows while going back`);
});

test('on a tall screen, where both edges are near, a reader who rests asks for nothing', async (t) => {
  const siskin = await Siskin.start(t, { demo: true, pair: false });
  const page = await paired(t, siskin, { viewport: { width: 1280, height: 1500 } });
  let asked = 0;
  page.on('websocket', (socket) =>
    socket.on('framesent', ({ payload }) => {
      if (/"type":"(older|newer)"/.test(payload)) asked += 1;
    }),
  );
  await page.reload();
  await ask(page, 'Make 190 calls with 0 ms');
  await log(page).getByText('Made 190 calls').waitFor({ timeout: 60_000 });
  await rested(page);
  await log(page).hover();
  for (const way of [-1, -1, -1, 1, -1]) {
    await page.mouse.wheel(0, way * 400);
    await sleep(500);
    const before = asked;
    await sleep(600);
    assert.ok(asked - before <= 1, `${asked - before} pages asked for at rest`);
  }
  // And the first row is still reached.
  await upTo(page, 'Make 190 calls with');
  assert.ok(asked > 0 && asked < 30, `${asked} pages`);
});
