// Who may speak to the server: tokens on every route, Host and Origin, pairing and its limits.

import assert from 'node:assert/strict';
import test from 'node:test';
import { request, run, Siskin } from '../fixture.mjs';
import { Peer } from '../peer.mjs';
import { Raw } from '../raw.mjs';

const ROUTES = [
  ['POST', '/api/pair/code'],
  ['GET', '/api/devices'],
  ['DELETE', '/api/devices/d1'],
  ['GET', '/api/status'],
  ['GET', '/api/tabs'],
  ['POST', '/api/tabs'],
  ['PATCH', '/api/tabs/t1'],
  ['DELETE', '/api/tabs/t1'],
  ['GET', '/api/tabs/t1/chunks'],
  ['GET', '/api/tabs/t1/turns'],
  ['GET', '/api/tabs/t1/results/1'],
  ['POST', '/api/tabs/t1/messages'],
  ['DELETE', '/api/tabs/t1/queue/m1'],
  ['POST', '/api/tabs/t1/queue/send'],
  ['POST', '/api/tabs/t1/stop'],
  ['GET', '/api/approvals'],
  ['POST', '/api/approvals/x'],
  ['GET', '/api/models'],
  ['GET', '/api/settings'],
  ['PUT', '/api/settings'],
];

test('every route needs a token, and nothing else answers without one', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  await siskin.newTab();
  for (const [method, route] of ROUTES) {
    const body = ['POST', 'PUT', 'PATCH'].includes(method) ? '{}' : undefined;
    const bearers = [
      { token: null },
      { token: 'A'.repeat(43) },
      { token: `${siskin.token}x` },
      { token: siskin.token.slice(0, -1) },
      { token: null, headers: { authorization: `Basic ${siskin.token}` } },
      { token: null, headers: { authorization: siskin.token } },
    ];
    for (const how of bearers) {
      const got = await siskin.api(method, route, body, how);
      assert.equal(got.status, 401, `${method} ${route} with ${JSON.stringify(how)}`);
      assert.equal(got.json.error.code, 'unauthorized');
    }
    const inUrl = await siskin.api(method, `${route}?token=${siskin.token}`, body, { token: null });
    assert.equal(inUrl.status, 401, 'a token in a URL is no token');
  }
  assert.equal((await siskin.api('GET', '/healthz', undefined, { token: null })).text, 'ok');
  assert.equal((await siskin.api('GET', '/', undefined, { token: null })).status, 200);
  assert.equal((await siskin.get('/api/tabs')).tabs.length, 1);
});

test('a socket without a valid token is closed with 4401', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  for (const token of [undefined, 'no', 'A'.repeat(43), '']) {
    const peer = new Peer(siskin.url, {});
    await peer.opened;
    peer.say({ type: 'hello', protocol: 1, token });
    assert.equal((await peer.closed).code, 4401, `token ${token}`);
  }
});

const hosts = (port) => [
  [`127.0.0.1:${port}`, 200],
  [`localhost:${port}`, 200],
  ['localhost', 200],
  [`[::1]:${port}`, 200],
  ['192.168.1.1', 200],
  ['router', 200],
  ['siskin.local', 200],
  ['box.lan', 200],
  ['a.home.arpa', 200],
  ['x.internal', 200],
  ['x.localdomain', 200],
  ['x.fritz.box', 200],
  ['SISKIN.LAN', 200],
  ['extra.example.net', 200],
  ['evil.example', 421],
  ['evil.example:80', 421],
  ['lan', 200],
  ['local.evil.com', 421],
  ['box.lan.evil.com', 421],
  ['127.0.0.1.evil.com', 421],
  ['fritz.box.evil', 421],
];

test('a foreign Host gets 421 everywhere, static files included', async (t) => {
  const siskin = await Siskin.start(t, { demo: true, config: 'hosts = ["extra.example.net"]' });
  for (const [host, expected] of hosts(siskin.port)) {
    for (const route of ['/', '/healthz', '/api/tabs']) {
      const got = await siskin.api('GET', route, undefined, { headers: { host } });
      assert.equal(got.status, expected, `${host} ${route}`);
    }
    const nowhere = await siskin.api('GET', '/nowhere', undefined, { headers: { host } });
    assert.equal(nowhere.status, expected === 200 ? 404 : 421, `${host} /nowhere`);
  }
});

const origins = (port) => [
  [`http://127.0.0.1:${port}`, 200],
  ['https://siskin.example.net', 200],
  [undefined, 200],
  [`http://127.0.0.1:${port + 1}`, 403],
  ['http://127.0.0.1', 403],
  [`https://127.0.0.1:${port}`, 403],
  ['null', 403],
  ['https://evil.example', 403],
  [`http://localhost:${port}`, 403],
  ['file://', 403],
  ['', 403],
];

test('a foreign Origin gets 403, before a socket is made', async (t) => {
  const siskin = await Siskin.start(t, { demo: true, config: 'origins = ["https://siskin.example.net"]' });
  for (const [origin, expected] of origins(siskin.port)) {
    const headers = origin === undefined ? {} : { origin };
    for (const route of ['/', '/healthz', '/api/tabs']) {
      const got = await siskin.api('GET', route, undefined, { headers });
      assert.equal(got.status, expected, `${origin} ${route}`);
      assert.equal(
        Object.keys(got.headers).some((name) => name.startsWith('access-control-')),
        false,
        'no CORS',
      );
    }
    const raw = await Raw.connect(siskin.port);
    raw.write(
      `GET /ws HTTP/1.1\r\nHost: 127.0.0.1:${siskin.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n` +
        `${origin === undefined ? '' : `Origin: ${origin}\r\n`}` +
        'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n',
    );
    const head = await raw.see(/\r\n\r\n/);
    assert.match(head, new RegExp(`^HTTP/1.1 ${expected === 200 ? 101 : 403} `), `socket from ${origin}`);
    raw.close();
  }
  const other = await siskin.api('GET', '/api/tabs', undefined, {
    headers: { host: 'box.lan', origin: 'http://box.lan:80' },
  });
  assert.equal(other.status, 200, 'the default port is the same origin');
});

test('a page has a strict CSP and hides where it came from', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const page = await siskin.api('GET', '/', undefined, { token: null });
  const csp = page.headers['content-security-policy'];
  assert.ok(csp, 'there is a CSP');
  assert.doesNotMatch(csp, /unsafe|\*|https?:/);
  assert.match(csp, /frame-ancestors 'none'/);
  assert.match(
    csp,
    new RegExp(`connect-src 'self' ws://127.0.0.1:${siskin.port} wss://127.0.0.1:${siskin.port}`),
  );
  assert.match(csp, /img-src 'self' data:/);
  assert.equal(page.headers['x-content-type-options'], 'nosniff');
  assert.equal(page.headers['referrer-policy'], 'no-referrer');
  assert.doesNotMatch(page.text, / style=|<style|<script(?![^>]* src=)| on\w+=/, 'nothing inline');
  assert.doesNotMatch(page.text, /(src|href)="(https?:)?\/\//, 'nothing from another host');
});

test('a pairing code works once, and a paired device can make one for the next', async (t) => {
  const siskin = await Siskin.start(t, { demo: true, pair: false });
  const code = (await siskin.link()).split('#pair=')[1];
  assert.match(code, /^[A-Z0-9]{4}-[A-Z0-9]{4}$/);
  const first = await siskin.api('POST', '/api/pair', { code, name: 'phone' });
  assert.equal(first.status, 201, first.text);
  assert.match(first.json.token, /^[A-Za-z0-9_-]{43,}$/, '256 bits');
  assert.equal((await siskin.api('POST', '/api/pair', { code })).status, 401, 'a code is one-time');
  siskin.token = first.json.token;
  const made = await siskin.api('POST', '/api/pair/code');
  assert.equal(made.status, 201);
  assert.ok(made.json.url.endsWith(`/#pair=${made.json.code}`));
  const inTime = made.json.expiresAt - Date.now();
  assert.ok(inTime > 590_000 && inTime <= 601_000, `${inTime} ms`);
  const second = await siskin.api(
    'POST',
    '/api/pair',
    { code: made.json.code, name: 'laptop' },
    { token: null },
  );
  assert.equal(second.status, 201);
  const { devices } = await siskin.get('/api/devices');
  assert.deepEqual(
    devices.map((device) => [device.name, device.current]),
    [
      ['phone', true],
      ['laptop', false],
    ],
  );
  assert.doesNotMatch(siskin.stderr + siskin.stdout, new RegExp(siskin.token), 'tokens are not logged');
});

test('wrong codes are limited by address, the right one included', async (t) => {
  const siskin = await Siskin.start(t, { demo: true, pair: false });
  const code = (await siskin.link()).split('#pair=')[1];
  for (let n = 0; n < 5; n += 1) {
    assert.equal((await siskin.api('POST', '/api/pair', { code: `WRNG-000${n}` })).status, 401);
  }
  const limited = await siskin.api('POST', '/api/pair', { code });
  assert.equal(limited.status, 429);
  assert.ok(Number(limited.headers['retry-after']) > 0 && Number(limited.headers['retry-after']) <= 60);
});

test('a revoked device is out at once, its sockets too', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const { code } = (await siskin.api('POST', '/api/pair/code')).json;
  const other = (await siskin.api('POST', '/api/pair', { code, name: 'lost' }, { token: null })).json;
  const peer = await siskin.peer({ token: other.token });
  const gone = await siskin.api('DELETE', `/api/devices/${other.deviceId}`);
  assert.equal(gone.status, 204);
  assert.equal((await peer.closed).code, 4401);
  assert.equal((await siskin.api('GET', '/api/tabs', undefined, { token: other.token })).status, 401);
  assert.equal((await siskin.api('DELETE', `/api/devices/${other.deviceId}`)).status, 404);
  await siskin.kill();
  await siskin.restart();
  assert.equal(
    (await siskin.api('GET', '/api/tabs', undefined, { token: other.token })).status,
    401,
    'also after a crash',
  );
  assert.equal((await siskin.api('GET', '/api/tabs')).status, 200);
});

test('siskin pair prints a code for the running server', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const printed = await run(['pair', '--config', siskin.config, '--data', siskin.data]);
  assert.equal(printed.code, 0, printed.stderr);
  const [first] = printed.stdout.split('\n');
  assert.match(first, /^code: [A-Z0-9]{4}-[A-Z0-9]{4}$/);
  assert.match(printed.stdout, /#pair=/);
  const paired = await siskin.api('POST', '/api/pair', { code: first.slice(6) }, { token: null });
  assert.equal(paired.status, 201);
  await siskin.stop();
  const alone = await run(['pair', '--config', siskin.config, '--data', siskin.data]);
  assert.equal(alone.code, 1);
  assert.equal(alone.stderr.trim().split('\n').length, 1, alone.stderr);
});

test('a link that is printed while nobody is paired is not printed afterwards', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  await siskin.restart();
  const page = await request(`${siskin.url}/healthz`);
  assert.equal(page.status, 200);
  assert.doesNotMatch(siskin.stdout, /#pair=/);
});
