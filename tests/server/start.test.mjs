// What can be wrong at the start: one line that names the cause and the mend, and the fitting exit code.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import test from 'node:test';
import { BINARY, COMMAND, folder, run, Siskin } from '../fixture.mjs';
import { Provider } from '../provider.mjs';

/** Runs `serve`, which has to end by itself with one line. */
async function refused(args, code, pattern, options) {
  const out = await run(['serve', ...args], options);
  assert.equal(out.code, code, `${args}: ${out.stdout}${out.stderr}`);
  const lines = out.stderr.trim().split('\n');
  assert.equal(lines.length, 1, out.stderr);
  for (const one of [pattern].flat()) assert.match(lines[0], one);
  assert.equal(out.stdout, '');
  assert.doesNotMatch(lines[0], /panicked|Os \{|Err\(/);
  return lines[0];
}

const CONFIGS = [
  ['listen = "127.0.0.1:0"\nlisten_on = "x"\n', [/siskin\.toml/, /2/, /listen_on/, /listen\b/]],
  ['modle = "x"\n', [/siskin\.toml/, /modle/]],
  ['listen = 5\n', [/siskin\.toml/, /\b1\b/, /listen/]],
  ['\n\nlisten = "nonsense"\n', [/siskin\.toml/, /\b3\b/, /listen/]],
  ['profile = "huge"\n', [/profile/, /router/, /sbc/]],
  ['listen = "127.0.0.1:0\n', [/siskin\.toml/, /\b1\b/]],
  ['[[provider]]\nname = "a"\nkind = "nonsense"\n', [/kind/, /anthropic/, /openai/, /\b3\b/]],
  ['[[provider]]\nname = "a"\nkind = "openai"\nbase_url = "ftp://x"\n', [/base_url/, /http/]],
  ['[[provider]]\nname = "a b"\nkind = "openai"\nbase_url = "http://x"\n', [/name/]],
  [
    '[[provider]]\nname = "a"\nkind = "openai"\nbase_url = "http://x"\napi_key_file = "/nonexistent/key"\n',
    [/\/nonexistent\/key/, /a/],
  ],
  ['[budget]\nconections = 3\n', [/conections/, /connections/]],
  ['[budget]\nevent_bytes = 1000000000\n', [/total_bytes/]],
  ['[budget]\nconnections = -1\n', [/connections/]],
  ['[[permission]]\ntool = "shell"\nmatch = "*"\ndo = "maybe"\n', [/allow/, /ask/, /deny/]],
  ['default_model = "no/such"\n', [/default_model/, /no\/such/]],
];

test('a config that is wrong is named by file, key and line', async (t) => {
  const dir = folder(t);
  const file = path.join(dir, 'siskin.toml');
  for (const [text, patterns] of CONFIGS) {
    fs.writeFileSync(file, text);
    await refused(['--config', file, '--data', path.join(dir, 'data')], 2, patterns);
  }
  await refused(['--config', path.join(dir, 'none.toml')], 2, /none\.toml/);
  assert.equal(fs.existsSync(path.join(dir, 'data')), false, 'nothing was made');
});

test('a wrong option is named', async () => {
  await refused(['--nonsense'], 2, /--nonsense/);
  await refused(['--listen'], 2, /--listen/);
  await refused(['--listen', 'x'], 2, /--listen|listen/);
  await refused(['--profile', 'x'], 2, /profile/);
  const verb = await run(['frobnicate']);
  assert.equal(verb.code, 2);
  assert.match(verb.stderr, /frobnicate/);
  assert.match((await run(['--version'])).stdout, /^siskin \d+\.\d+\.\d+\n$/);
  const help = await run(['--help']);
  assert.equal(help.code, 0);
  for (const verb_ of ['serve', 'pair', 'budget', '--demo', '--config'])
    assert.ok(help.stdout.includes(verb_), verb_);
});

test('a port in use is named, with what to do', async (t) => {
  const dir = folder(t);
  const server = net.createServer();
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => server.close());
  const address = `127.0.0.1:${server.address().port}`;
  await refused(['--demo', '--listen', address, '--data', path.join(dir, 'data')], 1, [
    new RegExp(address),
    /in use/,
    /--listen|listen/,
  ]);
  await refused(
    ['--demo', '--listen', '192.0.2.77:8787', '--data', path.join(dir, 'data')],
    1,
    /192\.0\.2\.77/,
  );
});

test('a data directory in use names who holds it', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const line = await refused(['--demo', '--listen', '127.0.0.1:0', '--data', siskin.data], 1, [
    /data|lock/,
    /use|holds|running/,
  ]);
  assert.ok(line.includes(String(siskin.pid)), line);
  assert.equal((await siskin.api('GET', '/healthz')).status, 200, 'the first one is not disturbed');
});

test('a data directory that cannot be written is named', async (t) => {
  const dir = folder(t);
  fs.chmodSync(dir, 0o755);
  const data = path.join(dir, 'data');
  fs.mkdirSync(data, { mode: 0o755 });
  const args = ['--demo', '--listen', '127.0.0.1:0', '--data'];
  const inFile = path.join(dir, 'file');
  fs.writeFileSync(inFile, '');
  await refused([...args, inFile], 1, /file/);
  await refused([...args, path.join(inFile, 'below')], 1, /below/);
  if (process.getuid() !== 0) {
    fs.chmodSync(data, 0o555);
    await refused([...args, data], 1, [/data/, /writ|permi/i]);
    return;
  }
  const by = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups'];
  // A copy, since the other user may not be able to reach the repository.
  const copy = path.join(dir, 'siskin');
  fs.copyFileSync(BINARY, copy);
  fs.chmodSync(copy, 0o755);
  const command = [...COMMAND.slice(0, -1), copy];
  assert.equal((await run(['--version'], { by, command })).code, 0);
  await refused([...args, data], 1, [/data/, /writ|permi/i], { by, command });
  await refused([...args, path.join(data, 'deeper', 'still')], 1, [/data/, /writ|permi|creat/i], {
    by,
    command,
  });
});

test('a database of a newer Siskin is left alone', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  await siskin.newTab();
  await siskin.stop();
  const file = fs.readdirSync(siskin.data).find((name) => /\.(db|sqlite3?)$/.test(name));
  assert.ok(file, `${fs.readdirSync(siskin.data)}`);
  const script =
    'import sqlite3,sys;d=sqlite3.connect(sys.argv[1]);' +
    'print([r for r in d.execute("select name from sqlite_master where name=\'meta\'")]);' +
    'v=d.execute("pragma user_version").fetchone()[0];' +
    "d.execute(\"update meta set value=999 where key like '%version%' or key like 'schema%'\");" +
    'd.execute("pragma user_version=999") if v else None;d.commit()';
  const { spawnSync } = await import('node:child_process');
  const python = spawnSync('python3', ['-c', script, path.join(siskin.data, file)], { encoding: 'utf8' });
  assert.equal(python.status, 0, python.stderr);
  await refused(['--demo', '--listen', '127.0.0.1:0', '--data', siskin.data], 1, [/999/, /newer|version/]);
});

test('a damaged database is moved aside, never deleted, and the log says where', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const tab = await siskin.newTab();
  await siskin.turn(tab.id, 'hello', 60_000);
  await siskin.stop();
  const name = fs.readdirSync(siskin.data).find((one) => /\.(db|sqlite3?)$/.test(one));
  const file = path.join(siskin.data, name);
  fs.writeFileSync(file, Buffer.from('this is no database at all, '.repeat(1000)));
  siskin.options.pair = false;
  await siskin.restart();
  assert.match(siskin.stderr, new RegExp(`${name}[^\\n]*`));
  const aside = fs
    .readdirSync(siskin.data)
    .filter((one) => one.startsWith(name) && one !== name && !/-(wal|shm)$/.test(one));
  assert.equal(aside.length, 1, `${fs.readdirSync(siskin.data)}`);
  assert.match(fs.readFileSync(path.join(siskin.data, aside[0]), 'utf8'), /^this is no database/);
  await siskin.pair();
  assert.equal((await siskin.api('GET', '/api/tabs')).status, 200);
});

test('without any model the server runs and says what to do', async (t) => {
  const siskin = await Siskin.start(t, {});
  const { models } = await siskin.get('/api/models');
  assert.deepEqual(models, []);
  const made = await siskin.api('POST', '/api/tabs', {});
  if (made.status === 201) {
    const sent = await siskin.api('POST', `/api/tabs/${made.json.id}/messages`, {
      clientId: 'a',
      text: 'hi',
    });
    if (sent.status === 202) {
      await siskin.idle(made.json.id);
      assert.match((await siskin.log(made.json.id)).at(-1).data.message, /provider|model/);
    } else assert.match(sent.json.error.message, /provider|model/);
  } else assert.match(made.json.error.message, /provider|model/);
});

test('models are asked from the provider where the config names none', async (t) => {
  const provider = await Provider.start({ models: ['m1', 'm2'] });
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, {
    tables:
      `[[provider]]\nname = "x"\nkind = "openai"\nbase_url = "${provider.url}/v1"\n` +
      `[[provider]]\nname = "y"\nkind = "anthropic"\n` +
      `base_url = "${provider.url}"\n[[provider]]\nname = "down"\n` +
      'kind = "openai"\nbase_url = "http://127.0.0.1:9"\n',
  });
  const { models, errors } = await siskin.get('/api/models');
  assert.deepEqual(
    models.map((model) => model.id),
    ['x/m1', 'x/m2', 'y/m1', 'y/m2'],
  );
  assert.deepEqual(
    errors.map((error) => error.provider),
    ['down'],
  );
  assert.match(errors[0].message, /127\.0\.0\.1:9|refused/);
  assert.deepEqual(
    provider.requests.map((request) => request.path.split('?')[0]),
    ['/v1/models', '/v1/models'],
  );
});

test('keys come from the environment only for the vendor that they belong to', async (t) => {
  const provider = await Provider.start({ key: 'env-key' });
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, {
    env: { OPENAI_API_KEY: 'env-key' },
    tables:
      `[[provider]]\nname = "x"\nkind = "openai"\nbase_url = "${provider.url}"\n` +
      'models = ["scripted"]\n',
  });
  const tab = await siskin.newTab({ model: 'x/scripted' });
  await siskin.turn(tab.id, 'hi');
  assert.equal(provider.asked.length, 1);
});

test('siskin budget prints the table and its sum, and a closed pipe is no fault', async () => {
  const printed = await run(['budget']);
  assert.equal(printed.code, 0);
  for (const word of ['connections', 'chunk_bytes', 'total_bytes', '24'])
    assert.ok(printed.stdout.includes(word), word);
  const { spawnSync } = await import('node:child_process');
  const script = '"$@" budget | true; exit "${PIPESTATUS[0]}"';
  const closed = spawnSync('bash', ['-c', script, 'bash', ...COMMAND], { encoding: 'utf8' });
  assert.equal(closed.status, 0, closed.stderr);
  assert.equal(closed.stderr, '');
});
