// Copies and exports: `siskin backup`, `restore` and `export` beside a running server and without one, and
// the download of a browser.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { Siskin, folder, run } from '../fixture.mjs';
import { Provider, say, text } from '../provider.mjs';

async function started(t) {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  const tab = await siskin.newTab({ title: 'Birds' });
  provider.always = say([text('41 **birds**')]);
  await siskin.turn(tab.id, 'how many?');
  return { provider, siskin, tab, verb: (...args) => run([...args, '--config', siskin.config]) };
}

test('a copy made under load holds what was sealed, and is put back', async (t) => {
  const { siskin, tab, verb } = await started(t);
  const file = path.join(folder(t), 'copy.db');
  const before = await siskin.log(tab.id);
  const load = Array.from({ length: 5 }, (_, n) => siskin.send(tab.id, `more ${n}`));
  const copied = await verb('backup', file);
  assert.equal(copied.code, 0, copied.stderr);
  assert.match(copied.stdout, /copy\.db: \d+ bytes\n$/);
  assert.equal(fs.statSync(file).mode & 0o777, 0o600);
  await Promise.all(load);
  await siskin.idle(tab.id);

  const busy = await verb('restore', file);
  assert.equal(busy.code, 1);
  assert.match(busy.stderr, /in use by process \d+; stop it/);

  await siskin.stop();
  const restored = await verb('restore', file);
  assert.equal(restored.code, 0, restored.stderr);
  assert.match(restored.stdout, /the one before was moved to .*before-restore/);
  await siskin.restart();
  const rows = await siskin.log(tab.id);
  assert.deepEqual(rows.slice(0, before.length), before);
  await siskin.turn(tab.id, 'and now?');
});

test('a stopped or killed server is copied, too', async (t) => {
  const { siskin, tab, verb } = await started(t);
  await siskin.kill();
  const file = path.join(folder(t), 'copy.db');
  const copied = await verb('backup', file);
  assert.equal(copied.code, 0, copied.stderr);
  const exported = await verb('export', tab.id);
  assert.match(exported.stdout, /41 \*\*birds\*\*/);
  fs.rmSync(path.join(siskin.data, 'siskin.db'));
  assert.equal((await verb('restore', file)).code, 0);
  await siskin.restart();
  assert.equal((await siskin.log(tab.id)).length, 2);
});

test('what cannot be copied or put back is told with its name', async (t) => {
  const { siskin, verb } = await started(t);
  const dir = folder(t);
  const own = path.join(siskin.data, 'siskin.db');
  for (const to of [dir, path.join(dir, 'no/where'), own, `${own}-wal`, path.join(siskin.data, 'lock')]) {
    const refused = await verb('backup', to);
    assert.equal(refused.code, 1);
    assert.ok(refused.stderr.includes(to), refused.stderr);
    assert.equal(refused.stderr.trim().split('\n').length, 1);
  }
  await siskin.stop();
  const pipe = path.join(dir, 'pipe');
  execFileSync('mkfifo', [pipe]);
  assert.match((await verb('restore', pipe)).stderr, /pipe is not a regular file/);
  const junk = path.join(dir, 'junk');
  fs.writeFileSync(junk, 'not a database');
  const refused = await verb('restore', junk);
  assert.equal(refused.code, 1);
  assert.ok(refused.stderr.includes(junk), refused.stderr);
  await siskin.restart();
  assert.equal((await siskin.get('/api/tabs')).tabs.length >= 1, true, 'the present one stays');
});

test('what root puts back belongs to the owner of the folder', async (t) => {
  if (process.getuid() !== 0) return t.skip('needs root');
  const { siskin, verb } = await started(t);
  const file = path.join(folder(t), 'copy.db');
  assert.equal((await verb('backup', file)).code, 0);
  await siskin.stop();
  fs.chownSync(siskin.data, 65534, 65534);
  assert.equal((await verb('restore', file)).code, 0);
  const { uid, gid } = fs.statSync(path.join(siskin.data, 'siskin.db'));
  assert.deepEqual([uid, gid], [65534, 65534]);
});

test('a conversation is exported by command, by route and by a link that works once', async (t) => {
  const { siskin, tab, verb } = await started(t);
  const rows = await siskin.log(tab.id);
  const lines = await verb('export', tab.id, '--format', 'jsonl');
  assert.deepEqual(lines.stdout.trim().split('\n').map(JSON.parse), rows);
  const page = await verb('export', tab.id);
  assert.match(page.stdout, /^# Birds\n/);
  assert.match(page.stdout, /## You, \d{4}-.*Z\n\nhow many\?\n\n## Siskin\n\n41 \*\*birds\*\*\n$/);
  const none = await verb('export', 't99');
  assert.equal(none.code, 1);
  assert.match(none.stderr, /there is no tab t99/);

  const download = await siskin.api('GET', `/api/tabs/${tab.id}/export?format=md`);
  assert.equal(download.status, 200);
  assert.equal(download.text, page.stdout);
  assert.match(download.headers['content-disposition'], /^attachment; filename="birds\.md"$/);
  assert.match(download.headers['content-type'], /^text\/markdown/);
  assert.equal((await siskin.api('GET', `/api/tabs/${tab.id}/export?format=pdf`)).status, 400);
  assert.equal((await siskin.api('GET', '/api/tabs/t99/export')).status, 404);
  assert.equal(
    (await siskin.api('GET', `/api/tabs/${tab.id}/export`, undefined, { token: '' })).status,
    401,
  );

  const made = await siskin.api('POST', `/api/tabs/${tab.id}/export?format=jsonl`);
  assert.equal(made.status, 201);
  const link = (await siskin.api('GET', made.json.url, undefined, { token: '' }));
  assert.equal(link.status, 200);
  assert.equal(link.text, lines.stdout);
  assert.equal((await siskin.api('GET', made.json.url, undefined, { token: '' })).status, 404);
  assert.equal((await siskin.api('GET', '/d/guess', undefined, { token: '' })).status, 404);
});

test('the export of a long log takes no memory', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const tab = await siskin.newTab();
  await siskin.turn(tab.id, '2000 chunks of 8000 bytes, 0 ms', 120_000);
  const before = siskin.rss();
  const download = await siskin.api('GET', `/api/tabs/${tab.id}/export?format=jsonl`);
  assert.ok(download.bytes.length > 12e6, `${download.bytes.length} bytes`);
  assert.ok(siskin.rss() - before < 2 << 20, `${siskin.rss() - before} bytes more`);
});
