// The page in headless Chromium: pairs by the printed link, asks the real model, sees the answer grow,
// reloads, and sees the same.

import assert from 'node:assert/strict';
import path from 'node:path';
import { ask, log, paired, quit, rested } from '../browser/page.mjs';
import { Siskin, textOf, until } from '../fixture.mjs';
import { CACHE, Ending, providers, startModel } from './model.mjs';

const QUESTION = 'What is a computer?';
const MODEL = 'gemma-3-270m';

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

async function converse(ending, model, wire) {
  const siskin = await Siskin.start(ending, {
    tables: providers(model),
    pair: false,
    config: `default_model = "${wire}/${MODEL}"`,
  });
  const page = await paired(ending, siskin);
  await page.evaluate(watch);
  await ask(page, QUESTION);
  siskin.token = await page.evaluate(
    () =>
      Object.values(localStorage)
        .join(' ')
        .match(/[\w-]{43,}/)?.[0],
  );
  const answered = async () => (await siskin.get('/api/tabs')).tabs.find(({ total }) => total > 1);
  const tab = await until(answered, 'the answer in the tab that the page made', 120_000);
  await siskin.idle(tab.id);
  await rested(page);

  const answer = words(textOf(await siskin.log(tab.id)));
  const shown = async () => words(await log(page).textContent()).includes(answer);
  assert.equal(tab.model, `${wire}/${MODEL}`);
  assert.ok(answer.length > 0, 'the model answered');
  await until(shown, `the page to show: ${answer}`);
  await page.screenshot({ path: path.join(CACHE, `page-${wire}.png`) });
  const seen = await page.evaluate(() => window.seen);
  const grew = seen.filter((now, at) => at && now.length > seen[at - 1].length);
  assert.ok(grew.length >= 4, `the answer grew before the reader's eyes: ${JSON.stringify(seen)}`);

  await page.reload();
  await until(shown, 'the same after a reload');
  const ms = grew.at(-1).at - grew[0].at;
  console.log(
    `- over \`${wire}\`: "${answer}", in ${grew.length} steps within ${ms.toFixed(0)} ms; ` +
      'the same after a reload',
  );
}

const all = new Ending();
try {
  const model = await startModel(all);
  all.after(quit);
  console.log(`\n## In the browser\n\n> ${QUESTION}\n`);
  for (const wire of ['chat', 'messages']) {
    const ending = new Ending();
    try {
      await converse(ending, model, wire);
    } finally {
      await ending.end();
    }
  }
} finally {
  await all.end();
}
