// The page in headless Chromium: pairs by the printed link, asks the real model, sees the answer grow, reloads, sees the same.

import assert from 'node:assert/strict';
import path from 'node:path';
import { chromium } from 'playwright-core';
import { Siskin, textOf, until } from '../fixture.mjs';
import { CACHE, Ending, providers, startModel } from './model.mjs';

const QUESTION = 'What is the sun?';
const CHROMIUM = process.env.SISKIN_CHROMIUM ?? '/usr/bin/chromium';
const ARGS = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync'];

/** Notes, frame by frame, how much text the conversation shows. */
function watch() {
  window.seen = [];
  const look = () => {
    const length = document.querySelector('[aria-label="Conversation"]').textContent.length;
    if (window.seen.at(-1)?.length !== length) window.seen.push({ at: performance.now(), length });
    requestAnimationFrame(look);
  };
  look();
}

const words = (text) => text.split(/\s+/).filter(Boolean).join(' ');

async function ask(browser, model, wire) {
  const ending = new Ending();
  const page = await (await browser.newContext({ viewport: { width: 1100, height: 720 } })).newPage();
  const faults = [];
  page.on('pageerror', (fault) => faults.push(`${fault}`));
  page.on('console', (line) => { if (line.type() === 'error') faults.push(line.text()); });
  try {
    const siskin = await Siskin.start(ending, { tables: providers(model), pair: false,
      config: `default_model = "${wire}/gemma-3-270m"` });
    await page.goto(await siskin.link());
    const field = page.getByRole('textbox').last();
    await field.waitFor();
    await page.evaluate(watch);
    await field.fill(QUESTION);
    await field.press('Enter');
    const log = page.getByLabel('Conversation');
    const rest = async () => page.evaluate(() => performance.now() - window.seen.at(-1).at > 2000 && window.seen.length > 2);
    await until(rest, 'the answer to have come', 60_000);
    await page.screenshot({ path: path.join(CACHE, `page-${wire}.png`) });

    const token = await page.evaluate(() => Object.values(localStorage).join(' ').match(/[A-Za-z0-9_-]{43}/)?.[0]);
    siskin.token = token;
    const [tab] = (await siskin.get('/api/tabs')).tabs;
    const answer = words(textOf(await siskin.log(tab.id)));
    assert.equal(tab.model, `${wire}/gemma-3-270m`);
    assert.ok(answer.length > 0, 'the model answered');
    assert.ok(words(await log.textContent()).includes(answer), `the page shows the answer: ${answer}`);
    const grew = (await page.evaluate(() => window.seen)).filter((now, at, all) => at && now.length > all[at - 1].length);
    assert.ok(grew.length >= 4, `the answer grew before the reader's eyes: ${JSON.stringify(grew)}`);

    await page.reload();
    await until(async () => words(await log.textContent().catch(() => '')).includes(answer), 'the same after a reload');
    assert.deepEqual(faults, []);
    const ms = grew.at(-1).at - grew[0].at;
    console.log(`- over \`${wire}\`: "${answer}" in ${grew.length} steps within ${ms.toFixed(0)} ms, and the same after a reload`);
  } finally {
    await page.context().close();
    await ending.end();
  }
}

const ending = new Ending();
try {
  const model = await startModel(ending);
  const browser = await chromium.launch({ executablePath: CHROMIUM, args: ARGS });
  ending.after(() => browser.close());
  console.log('\n## In the browser\n');
  console.log(`> ${QUESTION}\n`);
  for (const wire of ['chat', 'messages']) await ask(browser, model, wire);
} finally {
  await ending.end();
}
