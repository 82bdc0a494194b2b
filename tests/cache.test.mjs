// The simulated prompt cache: what is read, what is written, and when a hit is lost.

import assert from 'node:assert/strict';
import test from 'node:test';
import { Cache } from './cache.mjs';

const mark = (ttl) => ({ cache_control: { type: 'ephemeral', ...(ttl ? { ttl } : {}) } });
const said = (text, ttl) => ({ type: 'text', text, ...(ttl === undefined ? {} : mark(ttl)) });
const user = (...content) => ({ role: 'user', content });
const assistant = (...content) => ({ role: 'assistant', content });
const long = 'x'.repeat(4000);
const base = {
  model: 'm',
  max_tokens: 10,
  tools: [{ name: 'a', input_schema: { type: 'object' } }],
  system: [said(long, '')],
};

/** A cache on a clock of its own. */
function cacheAt() {
  const time = { now: 1_000_000 };
  return { time, cache: new Cache({ clock: () => time.now }) };
}

test('a request reads what the one before wrote', () => {
  const { cache } = cacheAt();
  const messages = [user(said(long, ''))];
  const first = cache.use({ ...base, messages });
  assert.deepEqual([first.cacheRead, first.reads, first.writes], [0, 0, [2, 3]]);
  assert.equal(first.input, 0, 'all up to the last mark is written');
  assert.ok(first.cacheWrite > 2000);
  const longer = [user(said(long, '')), assistant(said('b')), user(said('c', ''))];
  const second = cache.use({ ...base, messages: longer });
  assert.equal(second.cacheRead, first.cacheRead + first.cacheWrite);
  assert.ok(second.cacheWrite > 0 && second.cacheWrite < 100);
  assert.equal(second.reads, 3);
});

test('a mark that moved or went changes nothing, a byte does', () => {
  const { cache } = cacheAt();
  cache.use({ ...base, messages: [user(said(long, ''))] });
  const moved = cache.use({ ...base, messages: [user(said(long), said('more', ''))] });
  assert.equal(moved.reads, 3);
  const changed = cache.use({ ...base, messages: [user(said(`${long}.`, ''))] });
  assert.equal(changed.reads, 2, 'only the system text is read');
  const tool = [{ name: 'b', input_schema: { type: 'object' } }];
  assert.equal(cache.use({ ...base, tools: tool, messages: [user(said(long, ''))] }).reads, 0);
  assert.equal(cache.use({ ...base, model: 'n', messages: [user(said(long, ''))] }).reads, 0);
});

test('another effort or form of thinking loses the messages and keeps tools and system', () => {
  const { cache } = cacheAt();
  const messages = [user(said(long, ''))];
  cache.use({ ...base, messages });
  assert.equal(cache.use({ ...base, messages, output_config: { effort: 'low' } }).reads, 2);
  assert.equal(cache.use({ ...base, messages, thinking: { type: 'adaptive' } }).reads, 2);
  assert.equal(cache.use({ ...base, messages }).reads, 3);
});

test('a mark finds no entry that is twenty or more positions back', () => {
  for (const [blocks, reads] of [
    [19, 3],
    [20, 2],
  ]) {
    const { cache } = cacheAt();
    cache.use({ ...base, messages: [user(said(long, ''))] });
    const more = Array.from({ length: blocks - 1 }, (_, n) => said(`${n}`));
    const after = cache.use({ ...base, messages: [user(said(long), ...more, said('end', ''))] });
    assert.equal(after.reads, reads, `${blocks} blocks later`);
  }
  const { cache } = cacheAt();
  cache.use({ ...base, messages: [user(said(long, ''))] });
  const more = Array.from({ length: 40 }, (_, n) => said(`${n}`));
  const both = cache.use({ ...base, messages: [user(said(long, ''), ...more, said('end', ''))] });
  assert.equal(both.reads, 3, 'a second mark at the previous tail finds it');
});

test('entries are written only at marks', () => {
  const { cache } = cacheAt();
  const { system: _, ...bare } = base;
  assert.deepEqual(cache.use({ ...bare, messages: [user(said(long))] }).writes, []);
  assert.equal(cache.use({ ...bare, messages: [user(said(long))] }).cacheRead, 0);
  assert.equal(cache.use({ ...bare, messages: [user(said(long, ''))] }).cacheRead, 0);
});

test('an entry lives for its time from the start of each request that used it', () => {
  const { cache, time } = cacheAt();
  const messages = [user(said(long, ''))];
  cache.use({ ...base, messages });
  time.now += 299_000;
  assert.equal(cache.use({ ...base, messages }).reads, 3);
  time.now += 299_000;
  assert.equal(cache.use({ ...base, messages }).reads, 3, 'the read began its time anew');
  cache.pass(300_000);
  assert.equal(cache.use({ ...base, messages }).reads, 0);
  const hourly = [user(said(`${long}!`, '1h'))];
  const hour = { ...base, system: [said(long, '1h')], messages: hourly };
  const first = cache.use(hour);
  assert.equal(first.hourly, first.cacheWrite - 0);
  cache.pass(3_599_000);
  assert.equal(cache.use(hour).reads, 3);
  cache.pass(3_600_000);
  assert.equal(cache.use(hour).reads, 0);
});

test('below the minimum of the model nothing is cached and nothing is said', () => {
  const { cache } = cacheAt();
  const short = { ...base, system: [said('s', '')], messages: [user(said('hi', ''))] };
  const first = cache.use(short);
  assert.deepEqual([first.cacheRead, first.cacheWrite, first.writes], [0, 0, []]);
  assert.ok(first.input > 0);
  for (const [model, cached] of [
    ['claude-opus-5-5', true],
    ['claude-sonnet-4-5', false],
    ['claude-opus-4-6', false],
  ]) {
    const body = { ...base, model, system: [said('x'.repeat(2400), '')], messages: [user(said('hi', ''))] };
    cache.use(body);
    assert.equal(cache.use(body).cacheRead > 0, cached, model);
  }
});

test('servers of chat completions read the beginning that they saw before', () => {
  const cache = new Cache();
  const first = cache.useChat('a'.repeat(4000));
  assert.deepEqual(first, { input: 1000, cacheRead: 0, cacheWrite: 0 });
  const second = cache.useChat(`${'a'.repeat(4000)}${'b'.repeat(400)}`);
  assert.deepEqual(second, { input: 1100 - 960, cacheRead: 960, cacheWrite: 0 });
});
