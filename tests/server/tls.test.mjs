// TLS to a provider: an authority of the test's own, certificates that are right, and each that is wrong,
// told with its cause and its mend.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { assertPrefix } from '../body.mjs';
import { Authority, clockAt } from '../certs.mjs';
import { folder, run, Siskin, textOf } from '../fixture.mjs';
import { call, events, Provider, say, text } from '../provider.mjs';

const WIRES = { anthropic: 'a/scripted', openai: 'o/scripted' };
const YEAR = 365 * 24 * 3600 * 1000;

/** A provider with a certificate, and a server that trusts `authority` unless `trust` says otherwise. */
async function setUp(t, { certificate, trust, authority, ...options } = {}) {
  authority ??= new Authority(folder(t));
  const provider = await Provider.start({ tls: certificate ?? authority.issue() });
  t.after(() => provider.stop());
  const file = trust === undefined ? authority.pem : trust;
  const siskin = await Siskin.start(t, {
    provider,
    providerConfig: file ? `ca_file = "${file}"` : '',
    ...options,
  });
  return { authority, provider, siskin };
}

/** One turn that cannot come about; gives its message after what holds for each. */
async function refused(siskin, provider, { model = WIRES.openai, retried = false } = {}) {
  const tab = await siskin.newTab({ model });
  const before = provider?.arrived;
  const turn = await siskin.turn(tab.id, 'go', 60_000);
  assert.equal(turn.stopReason, 'error');
  const row = (await siskin.log(tab.id)).at(-1);
  assert.equal(row.type, 'error');
  const { message } = row.data;
  assert.ok(message.length < 400, message);
  assert.doesNotMatch(message, /\n|test-key|Context|InvalidCertificate|\.$/, message);
  // One connection asks for the model's facts, one for the answer; a retry would be a third.
  if (provider && !retried) assert.ok(provider.arrived - before <= 2, `tried again: ${message}`);
  return message;
}

/** This device's time as a message tells it. */
const clockOf = (message) => Date.parse(/clock says (\S+Z)/.exec(message)[1]);

for (const [wire, model] of Object.entries(WIRES)) {
  test(`${wire}: a whole turn with tools over TLS`, async (t) => {
    const { provider, siskin } = await setUp(t);
    fs.writeFileSync(path.join(siskin.workdir, 'note.txt'), 'the answer is 42\n');
    const tab = await siskin.newTab({ model });
    const long = Array.from({ length: 3000 }, (_, n) => `${n} é👍 `);
    provider.answers = [
      say([text('I look. '), call('read_file', { path: 'note.txt' })], { split: 1 }),
      say([text(...long)]),
      // Not even the end of TLS is told: what is whole stays whole.
      async (exchange) => {
        await exchange.head({ close: true });
        for (const { event, data } of events(wire, [text('bye')]))
          await exchange.body(`${event ? `event: ${event}\n` : ''}data: ${data}\n\n`);
        await sleep(50);
        exchange.socket.destroy();
      },
    ];
    assert.equal((await siskin.turn(tab.id, 'x'.repeat(100_000))).stopReason, 'end');
    assert.equal((await siskin.turn(tab.id, 'bye')).stopReason, 'end');
    assert.equal(textOf(await siskin.log(tab.id)), `I look. ${long.join('')}bye`);
    assert.match(provider.asked[1].text, /the answer is 42/);
    assert.equal(provider.fault, undefined);
    assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
    assertPrefix(provider.asked[0].text, provider.asked[1].text);
    assert.equal(provider.asked[0].protocol, 'TLSv1.3');
  });
}

test('the list of models, and a server of TLS 1.2 with a name, are reached too', async (t) => {
  const authority = new Authority(folder(t));
  const provider = await Provider.start({ tls: { ...authority.issue(), maxVersion: 'TLSv1.2' } });
  t.after(() => provider.stop());
  const tables = [
    '[[provider]]\nname = "far"\nkind = "openai"',
    `base_url = "https://localhost:${provider.port}"\nca_file = "${authority.pem}"`,
    `api_key_file = "${path.join(authority.dir, 'key')}"`,
  ];
  fs.writeFileSync(path.join(authority.dir, 'key'), provider.key);
  const siskin = await Siskin.start(t, { tables: tables.join('\n') });
  const { models } = await siskin.get('/api/models');
  assert.deepEqual(
    models.map((model) => model.id),
    ['far/scripted', 'far/other'],
  );
  const tab = await siskin.newTab({ model: 'far/scripted' });
  assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'end');
  assert.equal(provider.asked[0].protocol, 'TLSv1.2');
});

test('a certificate that the server signed itself is trusted if it is named, and no authority', async (t) => {
  const authority = new Authority(folder(t));
  const own = authority.issue({ self: true });
  const good = await setUp(t, { certificate: own, trust: own.file });
  const tab = await good.siskin.newTab();
  assert.equal((await good.siskin.turn(tab.id, 'go')).stopReason, 'end');
  const both = authority.issue({ self: true, isCa: true });
  const bad = await setUp(t, { certificate: both, trust: both.file });
  assert.match(await refused(bad.siskin, bad.provider), /is itself an authority \(CA:TRUE\).*CA:FALSE/);
});

test('with ca_file only its authorities count, and without it the public ones', async (t) => {
  const authority = new Authority(folder(t));
  const other = new Authority(folder(t), 'Another authority');
  const certificate = authority.issue();
  const wrong = await setUp(t, { certificate, trust: other.pem });
  const message = await refused(wrong.siskin, wrong.provider);
  assert.match(message, /not signed by an authority of ca_file .*ca\.pem, and with ca_file no other counts/);
  const none = await setUp(t, { certificate, trust: '' });
  assert.match(
    await refused(none.siskin, none.provider),
    /not signed by a public authority; if it is your own, put .* into ca_file of provider o/,
  );
  const own = await setUp(t, { certificate: authority.issue({ self: true }), trust: '' });
  assert.match(await refused(own.siskin, own.provider), /not signed by a public authority/);
  // Both in one file: both count.
  const two = path.join(authority.dir, 'two.pem');
  fs.writeFileSync(two, fs.readFileSync(other.pem) + fs.readFileSync(authority.pem, 'utf8'));
  const all = await setUp(t, { certificate, trust: two });
  const tab = await all.siskin.newTab();
  assert.equal((await all.siskin.turn(tab.id, 'go')).stopReason, 'end');
});

test('a certificate for another name is told with the names that it has', async (t) => {
  const authority = new Authority(folder(t));
  const certificate = authority.issue({ names: ['DNS:llm.example', 'DNS:other.example', 'IP:10.1.2.3'] });
  const { provider, siskin } = await setUp(t, { authority, certificate });
  assert.match(
    await refused(siskin, provider),
    /is for llm\.example, other\.example, 10\.1\.2\.3 and not for 127\.0\.0\.1; write a name .* in base_url/,
  );
  const bare = await setUp(t, { authority, certificate: authority.issue({ names: [] }) });
  assert.match(await refused(bare.siskin, bare.provider), /is for no name at all and not for 127\.0\.0\.1/);
});

test('a certificate out of its time is told with the time of this device', async (t) => {
  const authority = new Authority(folder(t));
  const expired = authority.issue({ from: Date.now() - 2 * YEAR, to: Date.now() - YEAR });
  const old = await setUp(t, { authority, certificate: expired });
  const year = new Date(Date.now() - YEAR).toISOString().slice(0, 10);
  for (const model of Object.values(WIRES)) {
    const message = await refused(old.siskin, old.provider, { model });
    assert.match(message, new RegExp(`expired on ${year}.*renew the certificate, or set the clock if it`));
    assert.ok(Math.abs(clockOf(message) - Date.now()) < 60_000, message);
  }
  const early = authority.issue({ from: Date.now() + YEAR, to: Date.now() + 2 * YEAR });
  const young = await setUp(t, { authority, certificate: early });
  const then = new Date(Date.now() + YEAR).toISOString().slice(0, 10);
  const message = await refused(young.siskin, young.provider);
  assert.match(message, new RegExp(`valid only from ${then}.*wait until then, or set the clock`));
  assert.ok(Math.abs(clockOf(message) - Date.now()) < 60_000, message);
});

test('a clock from before the program was made is named as the likely cause', async (t) => {
  const dir = folder(t);
  const authority = new Authority(dir);
  const env = clockAt(dir, Date.parse('2020-01-02T03:30:00Z'));
  const { provider, siskin } = await setUp(t, { authority, env });
  const message = await refused(siskin, provider);
  assert.match(message, /valid only from 20.*clock says 2020-01-02T03:.*likely cause: set the clock$/);
  const check = await run(['check', '--config', siskin.config], { env });
  assert.match(check.stdout, /^WRONG clock +2020-01-02.*set the time/m);
  // A clock that is merely some weeks wrong is not accused, but told.
  const slow = clockAt(dir, Date.now() + 30 * 24 * 3600 * 1000);
  const fast = await setUp(t, { authority, env: slow });
  assert.match(await refused(fast.siskin, fast.provider), /expired on .*clock says .*if it is wrong$/);
});

test('plain http where TLS is due, and TLS where plain http is, are told', async (t) => {
  const plain = await Provider.start();
  t.after(() => plain.stop());
  const one = await Siskin.start(t, { provider: plain, baseUrl: `https://127.0.0.1:${plain.port}` });
  plain.onConnect = (socket) => {
    socket.end('HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n');
    return false;
  };
  assert.match(await refused(one, plain), /does not speak TLS; if it speaks plain http, write http:\/\//);
  const authority = new Authority(folder(t));
  const secure = await Provider.start({ tls: authority.issue() });
  t.after(() => secure.stop());
  const two = await Siskin.start(t, { provider: secure, baseUrl: `http://127.0.0.1:${secure.port}` });
  assert.match(await refused(two, secure, { retried: true }), /https:\/\//);
});

test('a server that refuses the handshake, or ends in it, is told', async (t) => {
  const authority = new Authority(folder(t));
  const certificate = { ...authority.issue(), requestCert: true, ca: [fs.readFileSync(authority.pem)] };
  // A client without a certificate is refused by an alert, after the handshake in TLS 1.3.
  const picky = await setUp(t, { authority, certificate: { ...certificate, maxVersion: 'TLSv1.2' } });
  assert.match(await refused(picky.siskin, picky.provider, { retried: true }), /provider o/);
  const ends = net.createServer((socket) => {
    socket.on('error', () => {});
    socket.once('data', () => socket.end());
  });
  await new Promise((done) => ends.listen(0, '127.0.0.1', done));
  t.after(() => ends.close());
  const siskin = await Siskin.start(t, {
    provider: picky.provider,
    baseUrl: `https://127.0.0.1:${ends.address().port}`,
    budget: { attempts: 2 },
  });
  assert.match(await refused(siskin), /closed the connection without an answer: does it speak TLS/);
});

test('a server that never answers the hello is given up, and told so', async (t) => {
  const silent = await Provider.start();
  t.after(() => silent.stop());
  silent.onConnect = () => false;
  const siskin = await Siskin.start(t, {
    provider: silent,
    baseUrl: `https://127.0.0.1:${silent.port}`,
    budget: { attempts: 1 },
  });
  const began = Date.now();
  const message = await refused(siskin, silent);
  assert.match(message, /did not complete the TLS handshake within 15 s: check the port/);
  // Once for the model's facts, once for the answer.
  assert.ok(Date.now() - began < 34_000);
});

test('a ca_file that is missing or no PEM is refused with file, line and key', async (t) => {
  const dir = folder(t);
  const config = path.join(dir, 'siskin.toml');
  const file = path.join(dir, 'ca.pem');
  const ask = async () => {
    const table = '[[provider]]\nname = "home"\nkind = "openai"\nbase_url = "https://127.0.0.1:1"\n';
    fs.writeFileSync(config, `${table}ca_file = "${file}"\n`);
    for (const verb of ['serve', 'check']) {
      const { code, stderr } = await run([verb, '--config', config, '--data', path.join(dir, 'data')]);
      assert.equal(code, 2, stderr);
      assert.match(stderr, /siskin\.toml: line 5: provider ca_file/);
      assert.match(stderr, /ca\.pem/);
      if (verb === 'check') return stderr;
    }
    return undefined;
  };
  assert.match(await ask(), /No such file/);
  fs.writeFileSync(file, 'not PEM at all');
  assert.match(await ask(), /holds no certificate in PEM form/);
  fs.writeFileSync(file, '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n');
  assert.match(await ask(), /certificate 1 .* cannot be used/);
});

test('a ca_file that is gone while the server runs is told, and a new one counts at once', async (t) => {
  const authority = new Authority(folder(t));
  const { provider, siskin } = await setUp(t, { authority });
  const good = fs.readFileSync(authority.pem);
  fs.rmSync(authority.pem);
  const tab = await siskin.newTab({ model: 'o/scripted' });
  assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'error');
  assert.match((await siskin.log(tab.id)).at(-1).data.message, /ca_file of provider o: .*ca\.pem: No such/);
  assert.equal(provider.arrived, 0);
  fs.writeFileSync(authority.pem, good);
  assert.equal((await siskin.turn(tab.id, 'again')).stopReason, 'end');
});

test('a slow but steady stream over TLS outlives its limits three times over', async (t) => {
  const { siskin, provider, authority } = await setUp(t, {});
  siskin.options.providerConfig = `ca_file = "${authority.pem}"\nfirst_event_s = 1\nidle_s = 1`;
  siskin.configure();
  await siskin.restart();
  for (const [wire, model] of Object.entries(WIRES)) {
    const tab = await siskin.newTab({ model });
    const words = Array.from({ length: 18 }, (_, n) => `${n} `);
    provider.answers = [
      async (exchange) => {
        await exchange.head();
        for (const { event, data } of events(wire, [text(...words)])) {
          await exchange.body(`${event ? `event: ${event}\n` : ''}data: ${data}\n\n`);
          await sleep(200);
        }
        exchange.end();
      },
    ];
    const began = Date.now();
    assert.equal((await siskin.turn(tab.id, 'go', 30_000)).stopReason, 'end', wire);
    assert.ok(Date.now() - began > 3600);
    assert.equal(textOf(await siskin.log(tab.id)), words.join(''));
  }
});
