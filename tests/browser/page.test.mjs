// The page in a real browser: pairs, sends, sees streaming, reloads and sees the same.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import test, { after } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Siskin, textOf, until } from '../fixture.mjs';
import { call, Provider, refuse, say, text, thinking } from '../provider.mjs';
import { ask, field, log, open, paired, PHONE, quit, rested, said } from './page.mjs';

after(quit);

async function setUp(t, options = {}) {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  return { provider, siskin: await Siskin.start(t, { provider, pair: false, ...options }) };
}

for (const phone of [false, true]) {
  const size = phone ? 'on a phone' : 'on a desk';

  test(`${size}: the demo pairs by its link, streams, and looks the same after a reload`, async (t) => {
    const siskin = await Siskin.start(t, { demo: true, pair: false });
    const page = await paired(t, siskin, { phone });
    await ask(page, 'Hello, who are you?');
    await page.getByRole('button', { name: 'Stop' }).waitFor();
    // It streams if the text is seen to grow.
    const lengths = new Set();
    await until(
      async () => {
        lengths.add((await said(page)).join('').length);
        return !(await page.getByRole('button', { name: 'Stop' }).isVisible());
      },
      'the end of the turn',
      60_000,
    );
    assert.ok(lengths.size >= 3, `${lengths.size} different lengths were seen`);
    const before = await said(page);
    assert.ok(before[0].includes('Hello, who are you?'));
    assert.ok(before.length >= 2);
    await page.reload();
    await until(async () => (await said(page)).length >= before.length, 'the rows');
    assert.deepEqual(await said(page), before);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    assert.ok(wide <= 0, `the page is ${wide} px too wide`);
  });

  test(`${size}: text, thinking and tools of a real wire are shown as they come`, async (t) => {
    const { provider, siskin } = await setUp(t);
    const page = await paired(t, siskin, { phone });
    fs.writeFileSync(path.join(siskin.workdir, 'note.txt'), 'remember the milk\n');
    let go;
    const held = new Promise((done) => {
      go = done;
    });
    provider.answers = [
      say([
        thinking('What is in there?'),
        text('I read **note.txt**.'),
        call('read_file', { path: 'note.txt' }),
      ]),
      async (exchange) => {
        await say([text('First part. ', 'Second part.')], {
          cutAt: 700,
          then: async (one) => {
            await held;
            one.close();
          },
        })(exchange);
      },
      say('Never.'),
    ];
    await ask(page, 'Read my note');
    await log(page).getByText('First part.').waitFor();
    await log(page).locator('strong', { hasText: 'note.txt' }).waitFor();
    assert.ok(await page.getByRole('button', { name: 'Stop' }).isVisible());
    const tool = log(page).getByRole('button', { name: /read_file/ });
    assert.match(await tool.innerText(), /note\.txt/);
    assert.equal(await log(page).getByText('remember the milk').isVisible(), false, 'closed at first');
    await tool.click();
    await log(page).getByText('remember the milk').waitFor();
    await log(page)
      .getByRole('button', { name: /Thought/ })
      .click();
    await log(page).getByText('What is in there?').waitFor();
    go();
    await rested(page);
  });
}

test('a second browser sees it all as it happens, and closing one ends nothing', async (t) => {
  const { provider, siskin } = await setUp(t);
  const first = await paired(t, siskin);
  await siskin.api('GET', '/healthz');
  siskin.token = await first.evaluate(() =>
    Object.values(localStorage)
      .map((v) => {
        try {
          return JSON.parse(v);
        } catch {
          return v;
        }
      })
      .map((v) => v?.token ?? v)
      .find((v) => typeof v === 'string' && /^[\w-]{43,}$/.test(v)),
  );
  assert.ok(siskin.token, 'the token is in localStorage');
  const { code } = (await siskin.api('POST', '/api/pair/code')).json;
  const second = await open(t, siskin, { link: `${siskin.url}/#pair=${code}` });
  await field(second).waitFor();
  provider.answers = [
    say([text(...Array.from({ length: 300 }, (_, n) => `w${n} `))], { split: 200, pauseMs: 5 }),
  ];
  await ask(first, 'Count');
  await first.getByText(/w3 /).first().waitFor();
  const [tab] = (await siskin.get('/api/tabs')).tabs;
  await second
    .locator('a', { hasText: tab.title || 'Count' })
    .first()
    .click();
  await log(second).getByText(/w9 /).first().waitFor();
  assert.ok((await said(second))[0].includes('Count'), 'the prompt is seen at once');
  await first.close();
  await rested(second);
  assert.ok((await said(second)).join(' ').includes('w299'));
  assert.equal((await siskin.lastTurn(tab.id)).stopReason, 'end');
});

test('stop keeps what came, and the next message goes on', async (t) => {
  const { provider, siskin } = await setUp(t);
  const page = await paired(t, siskin);
  provider.answers = [
    say([text(...Array.from({ length: 3000 }, (_, n) => `w${n} `))], { split: 200, pauseMs: 10 }),
  ];
  await ask(page, 'Count');
  await log(page).getByText(/w5 /).first().waitFor();
  await page.getByRole('button', { name: 'Stop' }).click();
  await rested(page, 3000);
  assert.match((await said(page)).join(' '), /w0 w1 w2/);
  provider.always = say('Going on.');
  await ask(page, 'And now?');
  await log(page).getByText('Going on.').waitFor();
  assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
});

test('an error says what to do, and does not stay in the way', async (t) => {
  const { provider, siskin } = await setUp(t);
  const page = await paired(t, siskin);
  provider.answers = [refuse(401, { error: { message: 'invalid x-api-key' } })];
  await ask(page, 'Hello');
  const alert = log(page).locator('.item.error').last();
  await alert.waitFor();
  assert.match(await alert.innerText(), /key/i);
  assert.ok(await alert.getByRole('button').isVisible(), 'a button for it');
  await ask(page, 'Again');
  await log(page).getByText('ok', { exact: true }).waitFor();
});

test('a server that goes and comes back is noticed, and nothing is lost', async (t) => {
  const { provider, siskin } = await setUp(t);
  // The same port again, since the page goes on from where it was.
  siskin.options.listen = `127.0.0.1:${siskin.port}`;
  siskin.configure();
  const page = await paired(t, siskin, { allow: /WebSocket|Failed to load resource|ERR_/ });
  provider.answers = [
    say([text(...Array.from({ length: 3000 }, (_, n) => `w${n} `))], { split: 200, pauseMs: 10 }),
  ];
  await ask(page, 'Count');
  await log(page).getByText(/w5 /).first().waitFor();
  await siskin.kill();
  await page.getByText(/No connection/).waitFor({ timeout: 10_000 });
  await siskin.restart();
  await page.getByText(/No connection/).waitFor({ state: 'hidden', timeout: 20_000 });
  await rested(page);
  provider.always = say('Back again.');
  await ask(page, 'Still there?');
  await log(page).getByText('Back again.').waitFor();
  assert.equal((await said(page)).filter((one) => one.includes('Count')).length, 1);
});

test('without a token there is a field for the code, and a wrong one is said to be wrong', async (t) => {
  const { siskin } = await setUp(t);
  const page = await open(t, siskin, { allow: /401/ });
  const code = page.getByRole('textbox', { name: /code/i });
  await code.fill('AAAA-AAAA');
  await page.getByRole('button', { name: 'Pair' }).click();
  await page
    .getByText(/wrong|expired/)
    .first()
    .waitFor();
  await code.fill((await siskin.link()).split('#pair=')[1]);
  await page.getByRole('button', { name: 'Pair' }).click();
  await field(page).waitFor();
});

test('all of it works on plain http, where nothing needs a secure context', async (t) => {
  const { provider, siskin } = await setUp(t);
  const page = await paired(t, siskin, { host: 'siskin.lan' });
  assert.equal(await page.evaluate(() => window.isSecureContext), false);
  provider.answers = [say('```sh\necho copied\n```\n')];
  await ask(page, 'Give me a command');
  await log(page).locator('pre').waitFor();
  await rested(page);
  await log(page).getByRole('button', { name: /Copy/ }).first().click();
  await page
    .getByText(/Copied|Select and copy by hand/)
    .first()
    .waitFor();
  await ask(page, 'And again');
  await log(page).getByText('ok', { exact: true }).waitFor();
});

test('a reader is not pulled to the end, and comes back by the button', async (t) => {
  const { provider, siskin } = await setUp(t);
  const page = await paired(t, siskin);
  const lines = Array.from({ length: 400 }, (_, n) => `line ${n}\n\n`);
  provider.answers = [say([text(...lines)], { split: 300, pauseMs: 20 })];
  await ask(page, 'Write');
  await log(page).getByText('line 60', { exact: true }).waitFor();
  await log(page).hover();
  await page.mouse.wheel(0, -300);
  await sleep(150);
  const top = () => log(page).evaluate((node) => node.scrollTop);
  const at = await top();
  await sleep(500);
  assert.ok(Math.abs((await top()) - at) <= 1, 'the position does not move while text comes');
  const jump = page.getByRole('button', { name: /go to the end/i });
  await jump.click();
  await until(
    () => log(page).evaluate((node) => node.scrollHeight - node.scrollTop - node.clientHeight < 40),
    'the end',
  );
  await rested(page, 30_000);
  await until(
    () => log(page).evaluate((node) => node.scrollHeight - node.scrollTop - node.clientHeight < 40),
    'the end again',
  );
});

test('a long conversation keeps the page small, and its beginning can be reached', async (t) => {
  const { provider, siskin } = await setUp(t);
  const page = await paired(t, siskin);
  provider.answers = [
    say(() => Array.from({ length: 600 }, (_, n) => (n % 2 ? text(`answer ${n}.`) : thinking(`t ${n}`)))),
  ];
  await ask(page, 'the very first message');
  await log(page).getByText('answer 599.').waitFor({ timeout: 30_000 });
  await rested(page);
  const nodes = () => page.evaluate(() => document.querySelectorAll('.item').length);
  assert.ok((await nodes()) <= 200, `${await nodes()} items`);
  const first = log(page).getByText('the very first message', { exact: true });
  await until(
    async () => {
      await log(page).evaluate((node) => {
        node.scrollTop = 0;
        node.dispatchEvent(new WheelEvent('wheel', { deltaY: -100 }));
      });
      await sleep(100);
      assert.ok((await nodes()) <= 200, `${await nodes()} items while scrolling up`);
      return first.isVisible();
    },
    'the first message',
    30_000,
  );
});

test('on a phone the field stays above the keyboard, and its text does not make the page zoom', async (t) => {
  const { siskin } = await setUp(t);
  const page = await paired(t, siskin, { phone: true });
  const size = await field(page).evaluate((node) => parseFloat(getComputedStyle(node).fontSize));
  assert.ok(size >= 16, `${size} px`);
  await page.setViewportSize({ width: PHONE.width, height: 500 });
  await field(page).focus();
  await until(async () => {
    const box = await field(page).boundingBox();
    return box && box.y + box.height <= 500;
  }, 'the field to be inside');
  const targets = await page.evaluate(() =>
    [...document.querySelectorAll('button, a, select')]
      .filter((node) => node.offsetParent && getComputedStyle(node).visibility !== 'hidden')
      .map((node) => [node.outerHTML.slice(0, 80), node.getBoundingClientRect()])
      .filter(([, box]) => box.width > 0 && box.x >= 0 && box.x < innerWidth && box.height < 32),
  );
  assert.deepEqual(targets, [], 'nothing to tap is smaller than a finger');
});

test('the page is built of the log: what the server holds is what is shown', async (t) => {
  const { provider, siskin } = await setUp(t);
  const page = await paired(t, siskin);
  provider.always = say((exchange) => `answer ${exchange.json.messages.length} 👍`);
  for (let n = 0; n < 5; n += 1) {
    await ask(page, `question ${n} é`);
    await log(page)
      .getByText(`answer ${n * 2 + 1} 👍`, { exact: true })
      .waitFor();
    await rested(page);
  }
  const shown = (await said(page)).join('\n');
  siskin.token = await page.evaluate(
    () =>
      Object.values(localStorage)
        .join(' ')
        .match(/[\w-]{43,}/)[0],
  );
  const [tab] = (await siskin.get('/api/tabs')).tabs;
  const rows = await siskin.log(tab.id);
  assert.equal(textOf(rows).length, shown.match(/answer \d+ 👍/gu).join('').length);
  rows.forEach((row) => assert.ok(shown.includes(row.data.text), row.data.text));
});
