// Two browsers on one tab, connections cut in the middle of a word, a server that starts anew in the middle
// of a turn: both show exactly the log. A link goes to a row of it.

import assert from 'node:assert/strict';
import test, { after } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { keyOf } from '../../static/core/group.js';
import { Siskin, until } from '../fixture.mjs';
import { call, Provider, say, text, thinking } from '../provider.mjs';
import { ask, cuttable, field, log, open, paired, quit, rested, tokenOf } from './page.mjs';

after(quit);

const ALLOW = /WebSocket|ERR_CONNECTION|Failed to load/;

/** What a reader sees of the answers' words, each by its key. */
const words = (page) =>
  log(page).evaluate((node) =>
    [...node.querySelectorAll('.item')].map((item) => [
      item.dataset.key,
      item.matches('.md, .user') ? item.innerText.replace(/\s+/g, ' ').trim() : '',
    ]),
  );

/** The same, as the log has it. */
async function wordsOf(siskin, tab) {
  const items = new Map();
  for (const row of await siskin.log(tab)) {
    const { data } = row;
    items.set(keyOf(row), row.type === 'text' ? data.text.replace(/\s+/g, ' ').trim() : '');
  }
  return [...items];
}

test('two browsers, cuts amid a word, a server that starts anew: both show the log', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider, wires: ['a'], pair: false });
  const first = await paired(t, siskin, { allow: ALLOW });
  siskin.token = await tokenOf(first);
  const code = (await siskin.api('POST', '/api/pair/code')).json.url;
  const second = await open(t, siskin, { link: code, phone: true, allow: ALLOW });
  await field(second).waitFor();
  const pages = [first, second];
  const cuts = [await cuttable(first), await cuttable(second)];
  const long = Array.from({ length: 400 }, (_, n) => `antidisestablishment${n} `);
  provider.answers = [
    say(() => [thinking('hm'), text(...long.slice(0, 200)), call('system_info')], { split: 61, pauseMs: 2 }),
    say(() => [text(...long.slice(200))], { split: 61, pauseMs: 2 }),
  ];
  await ask(first, 'Write');
  const [tab] = (await siskin.get('/api/tabs')).tabs;
  await second.goto(`${siskin.url}/#/${tab.id}`);
  for (let n = 0; n < 3; n += 1) {
    await sleep(250);
    await cuts[n % 2]();
    await cuts[(n + 1) % 2]();
  }
  await siskin.idle(tab.id, 60_000);
  const check = async () => {
    const log_ = await wordsOf(siskin, tab.id);
    for (const page of pages) {
      await rested(page);
      await until(async () => (await words(page)).length === log_.length, 'all of it').catch(() => {});
      // One by one, since all of it is too much to read.
      const shown = await words(page);
      log_.forEach((item, at) => assert.deepEqual(shown[at], item));
      assert.equal(shown.length, log_.length);
    }
  };
  await check();

  provider.answers = [say(() => [text(...long)], { split: 61, pauseMs: 3 })];
  await ask(second, 'Again');
  await sleep(600);
  await siskin.kill();
  siskin.options.listen = `127.0.0.1:${siskin.port}`;
  siskin.configure();
  await siskin.restart();
  for (const page of pages) await page.locator('#banner').waitFor({ state: 'hidden', timeout: 20_000 });
  assert.equal((await siskin.lastTurn(tab.id)).status, 'interrupted');
  await check();
});

test('an address that names a row goes to it, and the end is one click away', async (t) => {
  const siskin = await Siskin.start(t, { demo: true, pair: false });
  const page = await paired(t, siskin);
  await ask(page, 'Stream 900 chunks of 60 bytes with 0 ms');
  await log(page).getByText('Chunk 900 of').waitFor({ timeout: 30_000 });
  await rested(page);
  const id = new URL(page.url()).hash.slice(2);
  const inView = async (text) => {
    const box = await log(page).getByText(text).first().boundingBox();
    const port = await log(page).boundingBox();
    return box && box.y >= port.y && box.y + box.height <= port.y + port.height;
  };
  await page.evaluate((hash) => {
    location.hash = hash;
  }, `/${id}/301`);
  await until(() => inView('Chunk 300 of'), 'row 301');
  await sleep(500);
  assert.ok(await inView('Chunk 300 of'), 'it stays');
  const jump = page.getByRole('button', { name: /go to the end/i });
  assert.match(await jump.innerText(), /To the end/, 'nothing is new');
  await jump.click();
  await log(page).getByText('Chunk 900 of').waitFor();
  assert.equal(new URL(page.url()).hash, `#/${id}`);

  await page.goto('about:blank');
  await page.goto(`${siskin.url}/#/${id}/12`);
  await until(() => inView('Chunk 11 of'), 'row 12 of a fresh page');
});

test('a lost server is told after 2 s and found at once when the page wakes; a draft stays', async (t) => {
  const siskin = await Siskin.start(t, { demo: true, pair: false });
  const page = await paired(t, siskin, { allow: ALLOW });
  await ask(page, 'hello');
  await rested(page);
  await field(page).fill('half a thought');
  siskin.options.listen = `127.0.0.1:${siskin.port}`;
  siskin.configure();
  const banner = page.locator('#banner');

  for (const event of ['online', 'pageshow', 'visibilitychange']) {
    await siskin.kill();
    const lost = Date.now();
    await sleep(1200);
    assert.equal(await banner.isVisible(), false, 'not before two seconds');
    await banner.waitFor({ timeout: 8000 });
    assert.ok(Date.now() - lost > 1900, `${Date.now() - lost} ms`);
    // Long enough for the wait between two tries to have grown to several seconds.
    await sleep(3000);
    await siskin.restart();
    await page.evaluate((name) => {
      const target = name === 'visibilitychange' ? document : window;
      target.dispatchEvent(new Event(name));
    }, event);
    const woken = Date.now();
    await banner.waitFor({ state: 'hidden', timeout: 10_000 });
    assert.ok(Date.now() - woken < 1000, `${event}: ${Date.now() - woken} ms until it was back`);
    assert.equal(await field(page).inputValue(), 'half a thought');
  }
  await page.reload();
  await log(page).getByText('hello').first().waitFor();
  assert.equal(await field(page).inputValue(), 'half a thought', 'over a reload, too');
});
