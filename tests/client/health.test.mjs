// Cache health: requests of turns as the server tells them, causes as sentences, and one turn among many.
import assert from 'node:assert/strict';
import test from 'node:test';
import { because, findTurn, requestsOf, together } from '../../static/core/health.js';

const step = (input, cacheRead, cacheWrite, output, more = {}) => ({
  model: 'a/m',
  usage: { input, cacheRead, cacheWrite, output },
  prefix: { blocks: 3, hash: 'h', missCause: more.missCause },
  ...(more.compaction && { compaction: true }),
});

test('a request tells what was fresh, read and written, and which share the cache served', () => {
  const turns = [{ turnId: 'u1', ordinal: 1, steps: [step(100, 0, 900, 5), step(50, 1000, 200, 7)] }];
  const [first, second] = requestsOf(turns);
  assert.deepEqual([first.no, first.fresh, first.read, first.written, first.out], [1, 100, 0, 900, 5]);
  assert.equal(first.rate, 0);
  // Input does not include what was cached: a share over 100 % cannot be.
  assert.equal(second.rate, 1000 / 1250);
  assert.deepEqual(together([first, second]), { sent: 2250, rate: 1000 / 2250, out: 12 });
});

test('a request without any tokens has no rate, and neither has nothing at all', () => {
  const [none] = requestsOf([{ turnId: 'u1', ordinal: 1, steps: [{ model: 'a/m' }] }]);
  assert.deepEqual([none.rate, none.cause, none.compaction], [null, '', false]);
  assert.equal(together([]).rate, null);
});

test('a compaction request is marked', () => {
  const steps = [step(1, 2, 3, 4, { compaction: true }), step(1, 2, 3, 4)];
  const marks = requestsOf([{ turnId: 'u1', ordinal: 1, steps }]).map((one) => one.compaction);
  assert.deepEqual(marks, [true, false]);
});

test('every cause of a lost hit is a plain sentence, with its detail', () => {
  for (const [code, wanted] of [
    ['model', /model changed/],
    ['prompt', /system prompt changed/],
    ['tools: shell', /tools changed \(shell\)/],
    ['tools: ', /tools changed\.$/],
    ['compaction', /compacted/],
    ['thinking', /thinking is no longer sent/],
    ['effort', /effort changed/],
    ['ttl: 734 s', /expired after a pause of 12 min 14 s/],
    ['minimum: 4096', /nothing below 4096 tokens/],
    ['lookback', /too much was added at once/],
    ['block: 14 (row 32)', /block 14 \(row 32\)/],
    ['unexplained', /no reason/],
    // A newer server may know more.
    ['weather: rain', /^Cache lost: weather: rain\.$/],
    ['constructor', /^Cache lost: constructor\.$/],
  ])
    assert.match(because(code), wanted, code);
  assert.equal(because(undefined), '');
});

test('one turn among many is found in few requests, wherever it stands, by a row amid it', async () => {
  const all = [];
  for (let ordinal = 1; ordinal <= 3000; ordinal += 1)
    all.push({ turnId: `u${ordinal * 7}`, ordinal, firstSeq: all.length * 5 + 1, steps: [] });
  const wanted = [1, 2, 3, 4, 5, 2991, 2992, 2993, 3000];
  for (let ordinal = 7; ordinal < 2991; ordinal += 61) wanted.push(ordinal);
  for (const ordinal of wanted) {
    let asked = 0;
    const ask = async (query) => {
      asked += 1;
      const { limit, before = 3001 } = Object.fromEntries(new URLSearchParams(query));
      const below = all.filter((turn) => turn.ordinal < Number(before));
      return { turns: below.slice(-Number(limit)) };
    };
    const found = await findTurn(ask, `u${ordinal * 7}`, (ordinal - 1) * 5 + 3);
    assert.equal(found?.ordinal, ordinal);
    assert.ok(asked <= 14, `${asked} requests for turn ${ordinal}`);
    assert.equal(await findTurn(ask, 'u-none', (ordinal - 1) * 5 + 3), undefined);
  }
  assert.equal(await findTurn(async () => ({ turns: [] }), 'u1', 1), undefined);
});
