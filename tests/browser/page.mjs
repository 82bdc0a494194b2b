// A headless Chromium with the page of a running server, paired by the printed link, and what no page may
// ever do.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import { chromium } from 'playwright-core';
import { atEnd } from '../fixture.mjs';

const PATHS = [
  process.env.SISKIN_CHROMIUM,
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/usr/bin/google-chrome',
];
const ARGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--host-resolver-rules=MAP siskin.lan 127.0.0.1',
];

export const DESKTOP = { width: 1280, height: 800 };
export const PHONE = { width: 390, height: 844 };

let browser;

/** The one browser of this file's tests. */
async function launch() {
  const executablePath = PATHS.find((path) => path && fs.existsSync(path));
  assert.ok(executablePath, 'Chromium is there; SISKIN_CHROMIUM names another place');
  browser ??= await chromium.launch({ executablePath, args: ARGS, headless: true });
  return browser;
}

/** To be called when a file's tests are over. */
export async function quit() {
  await browser?.close();
  browser = undefined;
}

/**
 * Opens the page; `t` closes it, and then fails if anything went wrong in it: an exception, a refused
 * policy, a request to another host, or script of somebody else. `link` is opened instead of pairing by the
 * fixture's token.
 */
export async function open(
  t,
  siskin,
  { viewport = DESKTOP, phone = false, link, host, dark = false, allow } = {},
) {
  const context = await (
    await launch()
  ).newContext({
    viewport: phone ? PHONE : viewport,
    hasTouch: phone,
    isMobile: phone,
    deviceScaleFactor: phone ? 2 : 1,
    colorScheme: dark ? 'dark' : 'light',
  });
  const page = await context.newPage();
  const faults = [];
  const origin = new URL(link ?? siskin.url);
  if (host) origin.hostname = host;
  page.on('pageerror', (fault) => faults.push(`exception: ${fault.stack}`));
  page.on('console', (message) => {
    if (message.type() === 'error' && !allow?.test(message.text()))
      faults.push(`console: ${message.text()}`);
  });
  page.on('request', (request) => {
    const url = new URL(request.url());
    if (!/^(data|blob|about):/.test(url.protocol) && url.hostname !== origin.hostname)
      faults.push(`request: ${url}`);
  });
  atEnd(t, async () => {
    const pwned = await page.evaluate(() => window.__pwned).catch(() => undefined);
    await context.close();
    assert.equal(pwned, undefined, 'foreign script ran');
    assert.deepEqual(faults, []);
  });
  await page.goto(origin.href);
  return page;
}

/** Pairs by the printed link and opens a fresh tab if the page offers none. */
export async function paired(t, siskin, options = {}) {
  const page = await open(t, siskin, { link: await siskin.link(), ...options });
  await field(page).waitFor({ timeout: 10_000 });
  assert.equal(new URL(page.url()).hash.includes('pair='), false, 'the code does not stay in the address');
  return page;
}

export const field = (page) => page.getByRole('textbox', { name: 'Message' });

export const log = (page) => page.getByRole('region', { name: 'Conversation' });

/**
 * Types a message and sends it as an owner would. Returns once it is a row or queued, since only then the
 * page shows whether its turn runs; one that is not taken (refused, no connection) is its test's affair.
 */
export async function ask(page, text) {
  await field(page).fill(text);
  await page.getByRole('button', { name: /^Send/ }).click();
  const start = text.trim().split('\n')[0].slice(0, 60);
  const taken = page.locator('.item.user:not(.pending), .queued').filter({ hasText: start });
  await taken.last().waitFor({ timeout: 3000 }).catch(() => {});
}

/** Waits until nothing runs any more. */
export async function rested(page, ms = 20_000) {
  await page.getByRole('button', { name: 'Stop' }).waitFor({ state: 'hidden', timeout: ms });
}

/** What the conversation says, without times and figures that change by themselves. */
export async function said(page) {
  const all = await log(page).evaluate((node) =>
    [...node.querySelectorAll('.item')].map((item) => item.innerText.trim()),
  );
  return all.filter(Boolean);
}

/** The token that the page was paired with, for requests beside it. */
export const tokenOf = (page) =>
  page.evaluate(() =>
    Object.values(localStorage)
      .join(' ')
      .match(/[\w-]{43,}/)[0],
  );
