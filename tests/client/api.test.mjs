// HTTP calls: the token, and errors that can be shown.
import assert from 'node:assert/strict';
import test from 'node:test';
import { Api, newClientId } from '../../static/core/api.js';
import { age, count, size, span } from '../../static/core/format.js';

function answering(status, body, headers = {}) {
  const seen = [];
  const fetcher = async (path, request) => {
    seen.push({ path, ...request });
    return {
      ok: status < 400,
      status,
      text: async () => body,
      headers: { get: (name) => headers[name] ?? null },
    };
  };
  return { api: new Api(() => 'secret', fetcher), seen };
}

test('the token goes into the header and never into the address', async () => {
  const { api, seen } = answering(200, '{"a":1}');
  assert.deepEqual(await api.post('/api/x', { b: 2 }), { a: 1 });
  assert.equal(seen[0].headers.Authorization, 'Bearer secret');
  assert.ok(!seen[0].path.includes('secret'));
  assert.equal(seen[0].body, '{"b":2}');
});

test('an empty request has no content type, and an empty answer is none', async () => {
  const { api, seen } = answering(204, '');
  assert.equal(await api.post('/api/x'), null);
  assert.equal(seen[0].headers['Content-Type'], undefined);
});

test('an error carries its status, code, message and wait', async () => {
  const { api } = answering(429, '{"error":{"code":"slow","message":"too many"}}', { 'Retry-After': '7' });
  await assert.rejects(api.get('/api/x'), {
    status: 429,
    code: 'slow',
    message: 'too many',
    retryAfterS: 7,
  });
});

test('an answer that is not from Siskin still says something', async () => {
  const { api } = answering(502, '<html>bad gateway</html>');
  await assert.rejects(api.get('/api/x'), { status: 502, message: 'the device answered 502' });
});

test('no answer at all is status 0', async () => {
  const api = new Api(
    () => null,
    async () => {
      throw new TypeError('failed to fetch');
    },
  );
  await assert.rejects(api.get('/api/x'), { status: 0 });
});

test('ids are made without a secure context, and differ', () => {
  assert.match(newClientId(), /^[0-9a-f]{24}$/);
  assert.notEqual(newClientId(), newClientId());
});

test('sizes, counts, spans and ages are short', () => {
  assert.deepEqual([0, 1023, 1024, 16384, 1 << 20, 1 << 30].map(size), [
    '0 B',
    '1023 B',
    '1.0 KiB',
    '16 KiB',
    '1.0 MiB',
    '1.0 GiB',
  ]);
  assert.deepEqual([0, 999, 1000, 9949, 9960, 34_000, 1_500_000].map(count), [
    '0',
    '999',
    '1.0k',
    '9.9k',
    '10k',
    '34k',
    '1.5M',
  ]);
  assert.deepEqual([4, 300, 12_000, 61_000, 7_200_000].map(span), [
    '4 ms',
    '0.3 s',
    '12 s',
    '1 min 1 s',
    '2 h',
  ]);
  assert.deepEqual(
    [0, 60_000, 3_600_000, 86_400_000].map((ms) => age(0, ms)),
    ['now', '1 min', '1 h', '1 d'],
  );
});
