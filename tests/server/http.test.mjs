// The edge: heads, framing, bodies, deadlines, and many connections at once.

import assert from 'node:assert/strict';
import net from 'node:net';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Siskin, until } from '../fixture.mjs';
import { ask, Raw } from '../raw.mjs';

const get = (fields = '', line = 'GET /healthz HTTP/1.1') => `${line}\r\n${fields}\r\n`;
const host = 'Host: localhost\r\n';

/** [name, bytes, status, whether the connection must end]; `TOKEN` is filled in. */
const HEADS = [
  ['a plain request', get(host), 200, false],
  ['an absolute end of a small head', get('host:localhost\r\n'), 200, false],
  ['no Host', get(), 400, true],
  ['two Hosts', get(`${host}${host}`), 400, true],
  ['HTTP/1.0 without Host', get('', 'GET /healthz HTTP/1.0'), [400, 421], true],
  ['HTTP/1.0', get(host, 'GET /healthz HTTP/1.0'), 200, true],
  ['HTTP/2.0', get(host, 'GET /healthz HTTP/2.0'), [400, 505], true],
  ['no version', 'GET /healthz\r\n\r\n', 400, true],
  ['Connection: close', get(`${host}Connection: close\r\n`), 200, true],
  [
    'TE with CL',
    get(`${host}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n`, 'POST /api/pair HTTP/1.1'),
    400,
    true,
  ],
  [
    'two CL',
    get(`${host}Content-Length: 2\r\nContent-Length: 2\r\n`, 'POST /api/pair HTTP/1.1'),
    400,
    true,
  ],
  [
    'two different CL',
    get(`${host}Content-Length: 2\r\nContent-Length: 3\r\n`, 'POST /api/pair HTTP/1.1'),
    400,
    true,
  ],
  ['CL 5x', get(`${host}Content-Length: 5x\r\n`, 'POST /api/pair HTTP/1.1'), 400, true],
  ['CL +5', get(`${host}Content-Length: +5\r\n`, 'POST /api/pair HTTP/1.1'), 400, true],
  ['CL -1', get(`${host}Content-Length: -1\r\n`, 'POST /api/pair HTTP/1.1'), 400, true],
  ['CL 5, 5', get(`${host}Content-Length: 5, 5\r\n`, 'POST /api/pair HTTP/1.1'), 400, true],
  ['CL empty', get(`${host}Content-Length: \r\n`, 'POST /api/pair HTTP/1.1'), 400, true],
  [
    'CL beyond u64',
    get(`${host}Content-Length: 99999999999999999999999\r\n`, 'POST /api/pair HTTP/1.1'),
    [400, 413],
    true,
  ],
  ['a bare CR', get(`${host}X: a\rb\r\n`), 400, true],
  ['NUL', get(`${host}X: a\0b\r\n`), 400, true],
  ['a folded field', get(`${host}X: a\r\n b\r\n`), 400, true],
  ['a space before the colon', get(`${host}X : a\r\n`), 400, true],
  ['a field without a colon', get(`${host}nonsense\r\n`), 400, true],
  [
    'chunked bodies',
    get(
      `${host}Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n`,
      'POST /api/pair HTTP/1.1',
    ),
    411,
    true,
  ],
  ['no CL', get(`${host}Content-Type: application/json\r\n`, 'POST /api/pair HTTP/1.1'), 411, null],
  [
    'too big',
    get(`${host}Content-Type: application/json\r\nContent-Length: 10000000\r\n`, 'POST /api/pair HTTP/1.1'),
    413,
    true,
  ],
  [
    'a huge length',
    get(
      `${host}Content-Type: application/json\r\nContent-Length: 1099511627776\r\n`,
      'POST /api/pair HTTP/1.1',
    ),
    413,
    true,
  ],
  [
    'another type',
    `${get(`${host}Content-Type: text/plain\r\nContent-Length: 2\r\n`, 'POST /api/pair HTTP/1.1')}{}`,
    415,
    null,
  ],
  ['no type', `${get(`${host}Content-Length: 2\r\n`, 'POST /api/pair HTTP/1.1')}{}`, 415, null],
  [
    'a form',
    `${get(
      `${host}Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 2\r\n`,
      'POST /api/pair HTTP/1.1',
    )}{}`,
    415,
    null,
  ],
  [
    'no JSON',
    `${get(`${host}Content-Type: application/json\r\nContent-Length: 2\r\n`, 'POST /api/pair HTTP/1.1')}{x`,
    400,
    null,
  ],
  ['too long a field', get(`${host}X: ${'a'.repeat(9000)}\r\n`), 431, true],
  [
    'too many fields',
    get(host + Array.from({ length: 500 }, (_, n) => `X${n}: 1\r\n`).join('')),
    431,
    true,
  ],
  ['too long a line', get(host, `GET /${'a'.repeat(9000)} HTTP/1.1`), [414, 431], true],
  ['a wrong method', get(host, 'DELETE /healthz HTTP/1.1'), 405, null],
  ['a made-up method', get(host, 'BREW /healthz HTTP/1.1'), [405, 501], null],
  ['a path of another host', get(host, 'GET http://evil.example/healthz HTTP/1.1'), [400, 421], null],
  ['CONNECT', get(host, 'CONNECT evil.example:80 HTTP/1.1'), [400, 405, 501], null],
  ['dots', get(host, 'GET /../../etc/passwd HTTP/1.1'), [400, 404], null],
  ['coded dots', get(host, 'GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1'), [400, 404], null],
  ['a bad escape', get(host, 'GET /%zz HTTP/1.1'), [400, 404], null],
  ['NUL in a path', get(host, 'GET /%00 HTTP/1.1'), [400, 404], null],
];

test('each head gets its status, and a doubtful one ends the connection', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  for (const [name, bytes, status, ends] of HEADS) {
    const got = await ask(siskin.port, bytes);
    assert.ok([status].flat().includes(got.status), `${name}: ${got.status} ${got.text.slice(0, 80)}`);
    if (ends !== null) assert.equal(got.ended, ends, `${name}: connection ended`);
    if (got.status >= 400 && got.status !== 421)
      assert.match(got.text, /"error":\{"code":"/, `${name}: says why`);
  }
  assert.equal((await siskin.status()).panics, 0);
});

test('405 names what is allowed', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const cases = [
    ['DELETE', '/healthz', /GET/],
    ['GET', '/api/pair', /POST/],
    ['PUT', '/api/tabs', /GET.*POST/],
  ];
  for (const [method, route, allow] of cases) {
    const got = await siskin.api(method, route);
    assert.equal(got.status, 405, route);
    assert.match(got.headers.allow, allow);
  }
  assert.equal((await siskin.api('GET', '/api/nothing')).status, 404);
});

test('a head that comes byte by byte is understood, one that does not end gets 408', async (t) => {
  const siskin = await Siskin.start(t, {
    demo: true,
    budget: { head_ms: 1000, body_ms: 1000, keep_alive_ms: 1000 },
  });
  const slow = await Raw.connect(siskin.port);
  for (const byte of get(host)) {
    slow.write(byte);
    await sleep(1);
  }
  assert.match(await slow.see(/ok$/), /^HTTP\/1.1 200 /);
  slow.close();
  const never = await Raw.connect(siskin.port);
  const began = Date.now();
  // A byte now and then does not move the deadline, which is for the whole head.
  const drip = setInterval(() => never.write('a'), 200);
  never.write('GET /healthz HTTP/1.1\r\nX: ');
  await never.end(5000);
  clearInterval(drip);
  assert.match(never.text, /^HTTP\/1.1 408 /);
  assert.ok(Date.now() - began < 2500);
  const half = await Raw.connect(siskin.port);
  half.write(
    `${get(`${host}Content-Type: application/json\r\nContent-Length: 100\r\n`, 'POST /api/pair HTTP/1.1')}{`,
  );
  await half.end(5000);
  assert.match(half.text, /^HTTP\/1.1 408 /);
  const mute = await Raw.connect(siskin.port);
  assert.equal(await mute.end(5000), true, 'a connection that says nothing ends');
});

test('pipelined requests are answered one after the other, in order', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const raw = await Raw.connect(siskin.port);
  raw.write(get(host) + get(host, 'GET /nowhere HTTP/1.1') + get(`${host}Connection: close\r\n`));
  await raw.end();
  const statuses = [...raw.text.matchAll(/HTTP\/1\.1 (\d+) /g)].map((found) => found[1]);
  assert.deepEqual(statuses, ['200', '404', '200']);
});

test('a body that was refused is not taken for the next request', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const smuggled = get(host);
  const body = `${get(
    `${host}Content-Type: text/plain\r\nContent-Length: ${smuggled.length}\r\n`,
    'POST /api/pair HTTP/1.1',
  )}${smuggled}`;
  const raw = await Raw.connect(siskin.port);
  raw.write(body);
  await raw.see(/\r\n\r\n/);
  await sleep(200);
  assert.equal([...raw.text.matchAll(/HTTP\/1\.1 /g)].length, 1, raw.text);
  raw.close();
});

test('HEAD gives the head of GET and no body', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  for (const route of ['/', '/healthz']) {
    const got = await ask(siskin.port, get(`${host}Connection: close\r\n`, `HEAD ${route} HTTP/1.1`));
    const full = await ask(siskin.port, get(`${host}Connection: close\r\n`, `GET ${route} HTTP/1.1`));
    assert.equal(got.status, 200);
    assert.ok(got.text.endsWith('\r\n\r\n'), 'no body');
    const length = (text) => /content-length: (\d+)/i.exec(text)?.[1];
    assert.equal(length(got.text), length(full.text));
  }
});

test('Expect: 100-continue is answered before the body comes', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const raw = await Raw.connect(siskin.port);
  raw.write(
    get(
      `${host}Content-Type: application/json\r\nContent-Length: 20\r\nExpect: 100-continue\r\n`,
      'POST /api/pair HTTP/1.1',
    ),
  );
  assert.match(await raw.see(/100 Continue\r\n\r\n/i), /^HTTP\/1.1 100 /);
  raw.write('{"code":"AAAA-AAAA"}');
  assert.match(await raw.see(/ 401 /), / 401 /);
  raw.close();
});

test('deep JSON is refused and harms nothing', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const tab = await siskin.newTab();
  for (const deep of [
    '['.repeat(100_000),
    `{"text":${'['.repeat(50_000)}${']'.repeat(50_000)}}`,
    '{"a":'.repeat(20_000),
  ]) {
    const got = await siskin.api('POST', `/api/tabs/${tab.id}/messages`, deep);
    assert.equal(got.status, 400);
  }
  const fine = await siskin.api('POST', `/api/tabs/${tab.id}/messages`, {
    clientId: 'a',
    text: '[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[',
    unknown: { a: [1, { b: 2 }] },
  });
  assert.equal(fine.status, 202, 'brackets in a text and unknown fields are no matter');
});

test('static files have a tag, are compressed on request, and are not sent twice', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const plain = await siskin.api('GET', '/', undefined, { token: null });
  const tag = plain.headers.etag;
  assert.ok(tag);
  const again = await siskin.api('GET', '/', undefined, { token: null, headers: { 'if-none-match': tag } });
  assert.equal(again.status, 304);
  assert.equal(again.bytes.length, 0);
  const packed = await siskin.api('GET', '/', undefined, { headers: { 'accept-encoding': 'gzip' } });
  assert.equal(packed.headers['content-encoding'], 'gzip');
  assert.match(packed.headers.vary, /accept-encoding/i);
  const { gunzipSync } = await import('node:zlib');
  assert.equal(gunzipSync(packed.bytes).toString(), plain.text);
  assert.equal(plain.headers['content-encoding'], undefined);
});

test('many slow heads do not keep others out', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const slow = await Promise.all(
    Array.from({ length: 60 }, async () => {
      const raw = await Raw.connect(siskin.port).catch(() => null);
      raw?.write('GET / HTTP/1.1\r\nX: ');
      return raw;
    }),
  );
  for (let n = 0; n < 5; n += 1) {
    const began = Date.now();
    assert.equal((await siskin.api('GET', '/healthz')).status, 200);
    assert.ok(Date.now() - began < 1000);
  }
  assert.ok(siskin.threads() < 40, `${siskin.threads()} threads`);
  slow.forEach((raw) => raw?.close());
});

test('with few descriptors the door opens again by itself', async (t) => {
  // While none is free, 503 is the answer.
  const answer = () =>
    until(async () => {
      const got = await siskin.api('GET', '/healthz').catch(() => null);
      return got?.status === 200 && got;
    }, 'an answer');
  const siskin = await Siskin.start(t, { demo: true, by: ['prlimit', '--nofile=40'] });
  const held = await Promise.all(
    Array.from({ length: 60 }, () => Raw.connect(siskin.port).catch(() => null)),
  );
  await sleep(500);
  held.forEach((raw) => raw?.close());
  const answered = await answer();
  assert.equal(answered.status, 200);
  // Connections that are gone before they are taken do not end the loop either.
  await Promise.all(
    Array.from(
      { length: 300 },
      () =>
        new Promise((done) => {
          const socket = net.connect(siskin.port, '127.0.0.1', () => {
            socket.resetAndDestroy();
            done();
          });
          socket.on('error', done);
        }),
    ),
  );
  assert.equal(
    (await answer()).status,
    200,
  );
});

test('a closed connection gives its thread and descriptor back', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  await siskin.status();
  await sleep(200);
  const base = { threads: siskin.threads(), fds: siskin.fds() };
  for (let n = 0; n < 30; n += 1) await siskin.api('GET', '/healthz');
  const peers = await Promise.all(Array.from({ length: 8 }, () => siskin.peer()));
  peers.forEach((peer) => peer.drop());
  await until(
    () => siskin.threads() <= base.threads && siskin.fds() <= base.fds,
    'threads and descriptors to be back',
  );
});
