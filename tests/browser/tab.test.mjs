// What an owner does with one tab: its menu, compaction, effort, the cache's health, errors and tries; and
// that little is loaded for a visit, the rest when it is wanted.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import test, { after } from 'node:test';
import { Siskin, until } from '../fixture.mjs';
import { Provider, refuse, say, text } from '../provider.mjs';
import { ask, field, log, open, paired, PHONE, quit, rested, said } from './page.mjs';

after(quit);

async function setUp(t, options = {}) {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  return { provider, siskin: await Siskin.start(t, { provider, pair: false, ...options }) };
}

const menu = (page) => page.getByRole('button', { name: 'Menu of this tab' });
const entry = (page, name) => page.getByRole('menuitem', { name });
async function choose(page, name) {
  await menu(page).click();
  await entry(page, name).click();
}

/** A model list that tells more than the scripted provider does. */
const offers = (page, models, errors = []) =>
  page.route(/\/api\/models$/, (route) => route.fulfill({ json: { models, errors } }));

test('a visit to a conversation loads at most 60 KB of files until one can write', async (t) => {
  const { siskin } = await setUp(t);
  const first = await paired(t, siskin);
  await ask(first, 'Hello');
  await rested(first);
  const page = await first.context().newPage();
  const cdp = await page.context().newCDPSession(page);
  await cdp.send('Network.enable');
  await cdp.send('Network.setCacheDisabled', { cacheDisabled: true });
  const [files, got] = [new Map(), new Map()];
  cdp.on('Network.responseReceived', ({ requestId, response }) => {
    const { pathname } = new URL(response.url);
    if (!pathname.startsWith('/api/') && pathname !== '/ws') files.set(requestId, pathname);
  });
  let [bytes, body] = [0, 0];
  cdp.on('Network.dataReceived', ({ requestId, encodedDataLength }) => {
    got.set(requestId, (got.get(requestId) ?? 0) + encodedDataLength);
  });
  cdp.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => {
    if (!files.has(requestId)) return;
    bytes += encodedDataLength;
    body += got.get(requestId) ?? 0;
  });
  await page.goto(siskin.url);
  await field(page).waitFor();
  await log(page).getByText('ok', { exact: true }).waitFor();
  t.diagnostic(`${files.size} files, ${body} bytes, with their heads ${bytes}`);
  assert.ok(files.size > 20, 'they were seen');
  assert.ok(body <= 60_000, `${body} bytes of files`);
  assert.ok(bytes <= 75_000, `${bytes} bytes with their heads`);
  const names = [...files.values()];
  assert.deepEqual(
    names.filter((name) => /device|archived|pairing|empty|menu|cache|later\.css/.test(name)),
    [],
    'nothing that nobody asked for',
  );
});

// Bug (kind): a browser remembers that a module could not be had. Effect: a page that was wanted while the
// device was away stayed away until a reload. Mend: a further try has another address.
test('a page that could not be fetched is told, and comes at the next try', async (t) => {
  const { siskin } = await setUp(t);
  const page = await paired(t, siskin, { allow: /ERR_FAILED|Failed to load/ });
  await ask(page, 'Hello');
  await rested(page);
  await page.route(/archived\.js/, (route) => route.abort());
  await page.getByRole('link', { name: 'Archived' }).click();
  await page.getByText('No answer from the device.').waitFor();
  await page.getByRole('link', { name: /Hello/ }).click();
  await log(page).getByText('ok', { exact: true }).waitFor();
  await page.unroute(/archived\.js/);
  await page.getByRole('link', { name: 'Archived' }).click();
  await page.getByText('Nothing is archived.').waitFor();
});

test('the menu of a tab works by keyboard, and goes with Escape or a press elsewhere', async (t) => {
  const { siskin } = await setUp(t);
  const page = await paired(t, siskin);
  assert.equal(await menu(page).isVisible(), false, 'there is no tab yet');
  await ask(page, 'Hello');
  await rested(page);
  const focused = () => page.evaluate(() => document.activeElement.innerText.trim());
  await menu(page).focus();
  await page.keyboard.press('Enter');
  await until(async () => (await focused()) === 'Rename', 'the first entry');
  await page.keyboard.press('ArrowUp');
  assert.equal(await focused(), 'Archive');
  await page.keyboard.press('ArrowDown');
  assert.equal(await focused(), 'Rename');
  await page.keyboard.press('Escape');
  assert.equal(await entry(page, 'Rename').count(), 0);
  assert.equal(await page.evaluate(() => document.activeElement.getAttribute('aria-expanded')), 'false');
  await menu(page).click();
  await entry(page, 'Rename').waitFor();
  await menu(page).click();
  assert.equal(await entry(page, 'Rename').count(), 0, 'its own press closes it');
  await menu(page).click();
  await entry(page, 'Rename').waitFor();
  await log(page).click();
  assert.equal(await entry(page, 'Rename').count(), 0);
  await choose(page, 'Rename');
  await page.getByRole('textbox', { name: 'Title of the tab' }).fill('Greetings');
  await page.keyboard.press('Enter');
  await page.getByRole('navigation', { name: 'Tabs' }).getByText('Greetings').waitFor();
});

// The page's address is one at which a browser offers nothing that needs a secure context.
test('a tab is exported as Markdown and as JSON lines, and the page stays as it is', async (t) => {
  const { provider, siskin } = await setUp(t);
  const page = await paired(t, siskin, { host: 'siskin.lan', allow: /404/ });
  provider.answers = [say('**Well**, thank you.')];
  await ask(page, 'How are you?');
  await rested(page);
  const [at, shown] = [page.url(), await said(page)];
  const fetched = async (name) => {
    const came = page.waitForEvent('download');
    await choose(page, name);
    const file = await came;
    const failure = await file.failure();
    const text = failure ? '' : fs.readFileSync(await file.path(), 'utf8');
    return { name: file.suggestedFilename(), failure, text };
  };
  const md = await fetched('Export as Markdown');
  assert.equal(md.name, 'how-are-you.md');
  assert.match(md.text, /^# How are you\?\n[^]*\n## You, [^]*\n\n\*\*Well\*\*, thank you\.\n/);
  const lines = await fetched('Export as JSON lines');
  assert.equal(lines.name, 'how-are-you.jsonl');
  const rows = lines.text.trim().split('\n').map((line) => JSON.parse(line));
  assert.deepEqual(rows.map((row) => row.data.text), ['How are you?', '**Well**, thank you.']);

  // A link that is good no more is a download that fails, not another page.
  await page.route(/\/export\?/, (route) => route.fulfill({ status: 201, json: { url: '/d/used' } }));
  assert.ok((await fetched('Export as Markdown')).failure);
  assert.equal(page.url(), at);
  assert.deepEqual(await said(page), shown);
});

test('a tab is compacted by hand, and the line that stays opens to the summary', async (t) => {
  const { provider, siskin } = await setUp(t);
  const page = await paired(t, siskin);
  provider.answers = [say('long '.repeat(900)), say('words '.repeat(900))];
  await ask(page, 'One');
  await rested(page);
  await ask(page, 'Two');
  await rested(page);
  let go;
  const held = new Promise((done) => {
    go = done;
  });
  provider.answers = [
    async (exchange) => {
      await held;
      await say('# What was said\n\n- **all** of it <img src=x onerror="window.__pwned=1">')(exchange);
    },
  ];
  await choose(page, 'Compact');
  await page.getByText('Compacting').waitFor();
  await page.getByRole('button', { name: 'Stop' }).waitFor();
  await menu(page).click();
  assert.equal(await entry(page, 'Compact').isEnabled(), false, 'one at a time');
  assert.equal(await entry(page, 'Compact').getAttribute('title'), 'Not while a turn runs');
  await page.keyboard.press('Escape');
  go();
  await rested(page);
  const line = log(page).getByRole('button', { name: /^Compacted/ });
  await line.waitFor();
  assert.equal(await log(page).getByText('What was said').count(), 0, 'closed at first');
  await line.click();
  await log(page).getByRole('heading', { name: 'What was said' }).waitFor();
  // Bug: what opened at the end opened below the edge, beneath the button that leads there. Mend: as much as
  // can be seen beside its line is brought into view.
  await until(async () => {
    const [view, opened] = [await log(page).boundingBox(), await line.locator('..').boundingBox()];
    return opened.y >= view.y && opened.y + opened.height <= view.y + view.height;
  }, 'all of it to be in view');
  await page.getByRole('button', { name: 'To the end' }).waitFor({ state: 'hidden' });
  await log(page).getByText('<img src=x onerror="window.__pwned=1">').waitFor();
  assert.equal(await log(page).locator('img').count(), 0);

  // And the cache's list marks the request for it.
  await choose(page, 'Cache');
  const sheet = page.getByRole('dialog', { name: 'Cache' });
  await sheet.getByText('compaction', { exact: true }).waitFor();
  await page.keyboard.press('Escape');
  await sheet.waitFor({ state: 'detached' });
  await ask(page, 'Three');
  await rested(page);
  assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
});

test('a compaction that is refused or fails says why, and can be tried again', async (t) => {
  const { provider, siskin } = await setUp(t);
  const page = await paired(t, siskin, { allow: /409/ });
  provider.answers = [say('long '.repeat(900)), say('words '.repeat(900))];
  await ask(page, 'One');
  await rested(page);
  await ask(page, 'Two');
  await rested(page);
  const error = { error: { code: 'conflict', message: 'a turn runs; stop it, or wait for its end' } };
  await page.route(/\/compact$/, (route) => route.fulfill({ status: 409, json: error }));
  await choose(page, 'Compact');
  await page.getByText('That did not work: a turn runs; stop it, or wait for its end').waitFor();
  await page.unroute(/\/compact$/);
  provider.answers = [refuse(401, { error: { message: 'invalid x-api-key' } })];
  await choose(page, 'Compact');
  const fault = log(page).locator('.item.error');
  await fault.getByText('The provider did not accept the key').waitFor();
  await rested(page);
  provider.answers = [say('All of it, in short.')];
  await fault.getByRole('button', { name: /again/ }).click();
  await log(page).getByRole('button', { name: /^Compacted/ }).waitFor();
  assert.equal(await log(page).locator('.item.user').count(), 2, 'nothing was asked in its place');
});

const usage = (input, cacheRead, cacheWrite) => ({ usage: { input, cacheRead, cacheWrite } });

test('a turn tells its tokens, and on a press its requests and why a hit was lost', async (t) => {
  const { provider, siskin } = await setUp(t);
  const page = await paired(t, siskin);
  provider.answers = [say('First.', usage(40, 0, 9000)), say('Second.', usage(300, 9000, 400))];
  await ask(page, 'One');
  await rested(page);
  await ask(page, 'Two');
  await rested(page);
  const sums = log(page).locator('.tokens-of');
  await until(async () => (await sums.count()) === 2, 'both sums');
  assert.match(await sums.last().innerText(), /^700 in · 9\.0k cached \(92 %\) · \d+ out$/);
  assert.equal(await page.locator('.requests').count(), 0, 'nothing is shown unless it is asked for');
  await page.getByRole('combobox', { name: 'Model' }).selectOption('a/other');
  provider.answers = [say('Third.', usage(9500, 0, 0))];
  await ask(page, 'Three');
  await until(async () => (await sums.count()) === 3, 'the third sum');
  await sums.last().click();
  const shown = log(page).locator('.requests');
  await shown.getByText('Cache lost: the model changed, and each has a cache of its own.').waitFor();
  assert.equal(await sums.last().getAttribute('aria-expanded'), 'true');
  await until(async () => {
    const [view, box] = [await log(page).boundingBox(), await shown.boundingBox()];
    return box.y + box.height <= view.y + view.height + 1;
  }, 'it to be in view');
  await sums.last().click();
  await shown.waitFor({ state: 'detached' });
  await sums.nth(1).click();
  await shown.getByText('92 %').waitFor();
  assert.equal(await shown.getByText('Cache lost').count(), 0);

  await choose(page, 'Cache');
  const sheet = page.getByRole('dialog', { name: 'Cache' });
  await until(async () => (await sheet.locator('.share').count()) === 3, 'the list of requests');
  const rates = await sheet.locator('.share').allInnerTexts();
  assert.deepEqual(rates.map((rate) => rate.trim()), ['0 %', '92 %', '0 %'], 'the newest first');
  await sheet.getByText('Cache lost: the model changed').waitFor();
  await sheet.getByRole('button', { name: 'Close' }).click();
  await sheet.waitFor({ state: 'detached' });
});

test('a try that failed is told with a countdown, and stop ends the wait', async (t) => {
  const { provider, siskin } = await setUp(t);
  const page = await paired(t, siskin);
  provider.always = refuse(529, { type: 'error', error: { type: 'overloaded_error', message: 'busy now' } }, {
    'retry-after': '40',
  });
  await ask(page, 'Hello');
  const doing = page.locator('.doing');
  await doing.getByText(/^Trying again in (40|39|38) s \(attempt \d\): .*busy now/).waitFor();
  await doing.getByText(/^Trying again in 3[0-7] s/).waitFor();
  assert.match(await doing.getAttribute('title'), /busy now/, 'also where the line is too short for it');
  await page.getByRole('button', { name: 'Stop' }).click();
  await rested(page, 3000);
  assert.equal(await page.getByText(/^Trying again/).count(), 0);
});

test('an error that may pass is tried again by its button only, as a new message', async (t) => {
  const { provider, siskin } = await setUp(t);
  const page = await paired(t, siskin);
  provider.answers = [say([text('Half of an answer.', ' And more.')], { cutAt: 700 })];
  await ask(page, 'Say it whole');
  await rested(page);
  const asked = provider.asked.length;
  const again = log(page).getByRole('button', { name: 'Try again' });
  await again.waitFor();
  assert.equal(provider.asked.length, asked, 'never by itself');
  provider.answers = [say('The whole answer.')];
  await again.click();
  await log(page).getByText('The whole answer.').waitFor();
  assert.equal(await log(page).getByText('Say it whole', { exact: true }).count(), 2);
});

const MODELS = [
  { id: 'a/scripted', provider: 'a', name: 'scripted', efforts: ['low', 'high'] },
  { id: 'a/other', provider: 'a', name: 'other' },
  { id: 'o/scripted', provider: 'o', name: 'scripted' },
];

test('effort is offered where the model takes it, also before there is a tab', async (t) => {
  const { siskin } = await setUp(t);
  const page = await paired(t, siskin);
  await offers(page, MODELS, [{ provider: 'cloud', message: 'provider cloud refused the key (401)' }]);
  await page.reload();
  const [model, effort] = ['Model', 'Effort'].map((name) => page.getByRole('combobox', { name }));
  await effort.waitFor();
  const groups = await model.locator('optgroup').evaluateAll((all) => all.map((one) => one.label));
  assert.deepEqual(groups, ['a', 'o', 'cloud'], 'one group a provider');
  assert.match(await model.locator('option:disabled').innerText(), /refused the key/);
  const made = page.waitForRequest((request) => request.method() === 'POST' && /tabs$/.test(request.url()));
  await effort.selectOption('high');
  await ask(page, 'Hello');
  assert.equal((await made).postDataJSON().effort, 'high');
  await rested(page);
  let changed;
  await page.route(/\/api\/tabs\/\w+$/, (route) => {
    changed = route.request().postDataJSON();
    return route.fulfill({ json: { id: 't1', effort: 'low', status: 'running' } });
  });
  await effort.selectOption('low');
  await until(() => changed, 'the change');
  assert.deepEqual(changed, { effort: 'low' });
  await until(async () => (await effort.inputValue()) === 'low', 'the choice');
  await menu(page).click();
  assert.ok(await entry(page, 'Compact').isEnabled(), 'nothing else is taken of an answer that may be old');
  await page.keyboard.press('Escape');
  await page.unroute(/\/api\/tabs\/\w+$/);
  await model.selectOption('a/other');
  await effort.waitFor({ state: 'hidden' });
});

// Bug: a list went on showing what had been picked though it was refused. Mend: drawn anew in any case.
test('a model that is refused is told, and the list shows the one that holds', async (t) => {
  const { siskin } = await setUp(t);
  const page = await paired(t, siskin, { allow: /400/ });
  await ask(page, 'Hello');
  await rested(page);
  const model = page.getByRole('combobox', { name: 'Model' });
  const error = { error: { code: 'bad_request', message: 'no such model' } };
  await page.route(/\/api\/tabs\/\w+$/, (route) => route.fulfill({ status: 400, json: error }));
  await model.selectOption('a/other');
  await page.getByText('That did not work: no such model').waitFor();
  await until(async () => (await model.inputValue()) === 'a/scripted', 'the one before');
  await page.unroute(/\/api\/tabs\/\w+$/);
  await model.selectOption('o/other');
  await until(async () => (await model.inputValue()) === 'o/other', 'the new one');
});

test('on a phone the effort stands in the menu', async (t) => {
  const { siskin } = await setUp(t);
  const page = await paired(t, siskin, { phone: true });
  await offers(page, MODELS);
  await page.reload();
  await menu(page).waitFor();
  assert.equal(await page.getByRole('combobox', { name: 'Effort' }).isVisible(), false);
  await menu(page).click();
  const high = page.getByRole('menuitemradio', { name: 'high' });
  assert.ok((await high.boundingBox()).height >= 44, 'as large as a finger');
  await high.click();
  await menu(page).click();
  assert.equal(await high.getAttribute('aria-checked'), 'true');
  const box = await page.getByRole('menu').boundingBox();
  assert.ok(box.x >= 0 && box.x + box.width <= PHONE.width);
});

test('a model that is not offered any more is shown as such', async (t) => {
  const { siskin } = await setUp(t);
  const page = await paired(t, siskin);
  await ask(page, 'Hello');
  await rested(page);
  await offers(page, MODELS.slice(1));
  await page.reload();
  const chosen = page.getByRole('combobox', { name: 'Model' }).locator('option:checked');
  await until(async () => (await chosen.innerText()) === 'a/scripted (not offered now)', 'the word');
});
