// What a reader looks at does not move, whatever happens around it: rows that come and go, pages at both
// ends, what is laid out late or opened above, lost connections and a new server. The browser's own
// anchoring is off (the page sets `overflow-anchor: none`, and so does this test, everywhere).

import assert from 'node:assert/strict';
import test, { after } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Siskin, until } from '../fixture.mjs';
import { call, Provider, say, text, thinking } from '../provider.mjs';
import { ask, cuttable, log, paired, quit, rested } from './page.mjs';

after(quit);

const MOVE_PX = 2;

/** Watches, frame by frame, how far the item under the reader's eye moves without the reader. */
async function watch(page) {
  await page.evaluate(() => {
    document.styleSheets[0].insertRule('* { overflow-anchor: none !important; }');
    const box = document.querySelector('#log');
    const find = () =>
      [...box.querySelectorAll('[data-key]')].find(
        (node) => node.getBoundingClientRect().bottom > box.getBoundingClientRect().top + 150,
      );
    window.__still = {
      begin() {
        const node = find();
        this.key = node.dataset.key;
        this.top = node.getBoundingClientRect().top;
        this.most = 0;
        this.lost = 0;
        this.on = true;
      },
      end() {
        this.on = false;
        return { key: this.key, most: this.most, lost: this.lost };
      },
    };
    // Just before each frame is painted: an observer of a size that changes with each frame is told after the
    // page's own observers, and what is mended by then is never seen.
    const beat = document.body.appendChild(document.createElement('i'));
    Object.assign(beat.style, { position: 'fixed', height: '1px', visibility: 'hidden' });
    const painted = new ResizeObserver(() => {
      const still = window.__still;
      if (still.on) {
        const node = box.querySelector(`[data-key="${still.key}"]`);
        if (!node) still.lost += 1;
        else still.most = Math.max(still.most, Math.abs(node.getBoundingClientRect().top - still.top));
      }
    });
    painted.observe(beat);
    let frames = 0;
    const look = () => {
      frames += 1;
      beat.style.width = `${1 + (frames % 2)}px`;
      requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  });
}

/** Does something while the reader looks, and checks that nothing moved. */
async function still(page, what, act) {
  await page.evaluate(() => window.__still.begin());
  await act();
  const { key, most, lost } = await page.evaluate(() => window.__still.end());
  assert.equal(lost, 0, `${what}: ${key} was gone for ${lost} frames`);
  assert.ok(most < MOVE_PX, `${what}: ${key} moved by ${most} px`);
  return most;
}

/** Moves the page, and waits until it moved. */
async function wheel(page, y) {
  const top = () => log(page).evaluate((node) => node.scrollTop);
  const from = await top();
  await page.mouse.wheel(0, y);
  await until(async () => (await top()) !== from, 'the page to move');
  let at;
  await until(async () => at === (at = await top()), 'the page to rest');
}

const LINE = `a line of code that is ${'wide, '.repeat(9)}\n`;
const CODE = `\`\`\`sh\n${LINE.repeat(9)}\`\`\`\n`;

/** Text, code, thinking and calls, over and over. */
const mixed = (steps, each) =>
  Array.from({ length: steps }, (_, step) =>
    say(() => [
      ...Array.from({ length: each }, (__, n) =>
        n % 4 === 3
          ? thinking(`thought ${step} ${n}`)
          : text(`Answer ${step} ${n}. `, n % 4 ? 'Words. '.repeat(n % 30) : CODE),
      ),
      ...(step < steps - 1 ? [call('system_info')] : []),
    ]),
  );

/** Trickles text until the server or the test ends it. */
const trickle = () =>
  say(() => Array.from({ length: 4000 }, (_, n) => text(`live ${n} `, 'and on')), {
    split: 700,
    pauseMs: 8,
  });

for (const phone of [false, true]) {
  const size = phone ? 'on a phone' : 'on a desk';

  test(`${size}: the row under the eye stays where it is`, async (t) => {
    const provider = await Provider.start();
    t.after(() => provider.stop());
    const siskin = await Siskin.start(t, { provider, wires: ['a'], pair: false });
    const page = await paired(t, siskin, { phone, allow: /WebSocket|ERR_CONNECTION|Failed to load/ });
    const cut = await cuttable(page);
    await watch(page);
    provider.answers = mixed(12, 40);
    await ask(page, 'Say much');
    await log(page).getByText('Answer 11 38').waitFor({ timeout: 60_000 });
    await rested(page);
    const figures = {};

    provider.answers = [trickle()];
    await ask(page, 'Go on');
    await log(page).getByText('live 30 ').first().waitFor({ timeout: 20_000 });
    await log(page).hover();
    await wheel(page, -1500);
    figures.streaming = await still(page, 'while it streams and the window fills', () => sleep(2500));

    // Pages come at the edge while the eye rests just above it, and go at the other.
    for (let n = 0; n < 6; n += 1) {
      await wheel(page, -1700);
      figures.older = Math.max(figures.older ?? 0, await still(page, 'pages above', () => sleep(350)));
    }
    for (let n = 0; n < 4; n += 1) {
      await wheel(page, 1700);
      figures.newer = Math.max(figures.newer ?? 0, await still(page, 'pages below', () => sleep(350)));
    }

    figures.late = await still(page, 'late heights above', async () => {
      await page.evaluate(() => {
        const edge = document.querySelector('#log').getBoundingClientRect().top;
        const above = [...document.querySelectorAll('#log .item')].filter(
          (node) => node.getBoundingClientRect().bottom < edge,
        );
        above.slice(-5).forEach((node, at) => {
          const late = () => {
            node.style.paddingBottom = `${20 + at * 31}px`;
          };
          setTimeout(() => requestAnimationFrame(late), at * 60);
        });
      });
      await sleep(600);
    });
    figures.opened = await still(page, 'a result opened above', async () => {
      await page.evaluate(() => {
        const edge = document.querySelector('#log').getBoundingClientRect().top;
        const lines = [...document.querySelectorAll('#log .item .line')].filter(
          (node) => node.getBoundingClientRect().bottom < edge,
        );
        lines.at(-1)?.click();
      });
      await sleep(300);
    });

    for (let n = 0; n < 3; n += 1) {
      const moved = await still(page, 'a lost connection', async () => {
        await cut();
        await sleep(900);
      });
      figures.lost = Math.max(figures.lost ?? 0, moved);
    }
    figures.away = await still(page, 'a server that is away, and its banner', async () => {
      await siskin.kill();
      await page.getByText(/Not connected|away|try/i).first().waitFor({ timeout: 8000 });
      await sleep(300);
    });
    const place = await page.evaluate(() => window.__still.key);
    siskin.options.listen = `127.0.0.1:${siskin.port}`;
    siskin.configure();
    figures.restart = await still(page, 'a new server', async () => {
      await siskin.restart();
      await until(() => page.locator('#banner').isHidden(), 'the connection', 20_000);
      await sleep(1200);
    });
    assert.equal(await page.locator(`[data-key="${place}"]`).count(), 1);
    assert.ok(await page.getByRole('button', { name: /go to the end/i }).isVisible(), 'still reading');
    t.diagnostic(`moved at most, in px: ${JSON.stringify(figures)}`);
  });
}
