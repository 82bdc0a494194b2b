// The pictures of the README, taken from the demo; run by tests/pictures.

import fs from 'node:fs';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Siskin, until } from './fixture.mjs';
import { ask, field, log, open, quit, rested } from './browser/page.mjs';
import { withPalette } from './palette.mjs';

/** A picture has to load on a slow link as well. */
const BYTES_MAX = 120_000;
const into = path.resolve(process.argv[2]);

/** The fixture ends what it began when a test ends; here that is the end of the program. */
const ends = [];
const t = { after: (end) => ends.push(end) };

/** What lies in the working folder, so that the demo has something to tell of. */
const FILES = {
  'backup/network.uci': "config interface 'lan'\n\toption ipaddr '192.168.1.1'\n",
  'dhcp.leases': '1796070000 aa:bb:cc:00:11:22 192.168.1.20 laptop *\n',
  'notes.md': '# Notes\n\n- new filter for the well pump in May\n',
  'wan.log': 'Nov 30 07:12:44 wan up\n',
};

const VIEWS = [
  { name: 'desk-light' },
  { name: 'desk-dark', dark: true },
  { name: 'phone-light', phone: true },
  { name: 'phone-dark', phone: true, dark: true },
];

async function picture(page, name) {
  const file = path.join(into, `${name}.png`);
  await page.mouse.move(0, 0);
  const small = withPalette(await page.screenshot({ animations: 'disabled', caret: 'hide' }));
  if (small.length > BYTES_MAX) throw new Error(`${name}.png has ${small.length} bytes`);
  fs.writeFileSync(file, small);
  console.log(`${name}.png ${small.length}`);
}

/** Fills the list of tabs, and shows the one that looks best. */
async function talk(siskin) {
  for (const [title, text] of [
    ['Backups of the router', 'Make 3 calls'],
    ['What a reply can hold', 'Show me some markdown'],
    ['How is this device?', 'How is this device doing?'],
  ]) {
    const tab = await siskin.newTab();
    await siskin.turn(tab.id, text, 30_000);
    await siskin.api('PATCH', `/api/tabs/${tab.id}`, { title });
  }
}

async function shown(siskin, view) {
  const { code } = (await siskin.api('POST', '/api/pair/code')).json;
  const page = await open(t, siskin, { link: `${siskin.url}/#pair=${code}`, ...view });
  await field(page).waitFor();
  await until(async () => (await log(page).locator('.item').count()) > 4, 'the conversation');
  return page;
}

async function all() {
  fs.mkdirSync(into, { recursive: true });
  const siskin = await Siskin.start(t, { demo: true });
  for (const [name, text] of Object.entries(FILES)) {
    fs.mkdirSync(path.join(siskin.workdir, path.dirname(name)), { recursive: true });
    fs.writeFileSync(path.join(siskin.workdir, name), text);
  }
  await talk(siskin);
  for (const view of VIEWS) {
    const page = await shown(siskin, view);
    await log(page)
      .getByRole('button', { name: /list_files/ })
      .click();
    await log(page).evaluate((node) => {
      node.scrollTop = 0;
    });
    await sleep(300);
    await picture(page, view.name);
  }

  const reader = await shown(siskin, {});
  await ask(reader, 'Stream 400 chunks of 180 bytes with 2 ms');
  await log(reader).getByText('Chunk 30 of 400').waitFor({ timeout: 30_000 });
  // Up, while the turn goes on.
  await log(reader).hover();
  await reader.mouse.wheel(0, -700);
  await sleep(1500);
  await picture(reader, 'reading');
  await reader.getByRole('button', { name: 'Stop' }).click();
  await rested(reader);

  const page = await open(t, siskin, { phone: true });
  await page.getByRole('button', { name: 'Pair' }).waitFor();
  await picture(page, 'pairing');
}

try {
  await all();
} finally {
  for (const end of ends.reverse()) await end();
  await quit();
}
