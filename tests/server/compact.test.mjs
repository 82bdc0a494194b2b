// Conversations that are longer than their model's context: summaries by themselves and by hand, refusals of
// every length, servers that leave the beginning out, and the caps of a turn and a day.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { assertPrefix } from '../body.mjs';
import { Siskin, until } from '../fixture.mjs';
import { call, Provider, refuse, say, text, thinking } from '../provider.mjs';

const WIRES = { anthropic: 'a/scripted', openai: 'o/scripted' };
const TOO_LONG = {
  anthropic: refuse(400, {
    type: 'error',
    error: { type: 'invalid_request_error', message: 'prompt is too long: 210000 tokens > 200000 maximum' },
  }),
  openai: refuse(400, {
    error: {
      message: 'the request exceeds the available context size, try increasing it',
      type: 'exceed_context_size_error',
      code: 400,
      n_ctx: 4096,
      n_prompt_tokens: 9000,
    },
  }),
};

const ASKS = /Write a summary of this whole conversation/;
const asksForSummary = (exchange) => ASKS.test(exchange.text);
const SUMMARY = 'The owner counts birds; 41 so far.';

/** Answers a request for a summary with one, and others with `answer`. */
const summing =
  (answer, summary = say([text(SUMMARY)])) =>
  (exchange) =>
    (asksForSummary(exchange) ? summary : answer)(exchange);

/** Tokens as they are: a quarter of the bytes. */
const counted =
  (parts, options = {}) =>
  (exchange) => {
    const input = Math.ceil(exchange.text.length / 4);
    return say(parts, { ...options, usage: { input, cacheRead: 0, cacheWrite: 0, output: 9 } })(exchange);
  };

function both(name, body, options = {}) {
  for (const [wire, model] of Object.entries(WIRES)) {
    test(`${wire}: ${name}`, async (t) => {
      const provider = await Provider.start();
      t.after(() => provider.stop());
      const siskin = await Siskin.start(t, { provider, ...options });
      const tab = await siskin.newTab({ model });
      await body({ t, wire, provider, siskin, tab });
      assert.equal(provider.fault, undefined);
      assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
    });
  }
}

const kinds = (rows) => rows.filter((row) => row.type === 'system').map((row) => row.data.kind);
const compacted = (rows) => rows.filter((row) => row.data.kind === 'compacted');
const birds = (n) => `bird ${n}: ${'feather '.repeat(120)}`;

both(
  'a conversation that nears its context is shortened by itself, and goes on after the summary',
  async ({ provider, siskin, tab }) => {
    provider.always = summing(counted([text('noted')]));
    for (let n = 1; n <= 14; n += 1) {
      const turn = await siskin.turn(tab.id, birds(n));
      assert.equal(turn.stopReason, 'end');
    }
    const rows = await siskin.log(tab.id);
    const marks = compacted(rows);
    assert.ok(marks.length >= 1, 'it was shortened');
    assert.equal(rows.filter((row) => row.role === 'user').length, 14, 'the log keeps everything');
    const asked = provider.asked;
    for (const mark of marks) {
      assert.equal(mark.data.text, SUMMARY);
      assert.ok(mark.data.upto < mark.seq);
    }
    const largest = Math.max(...asked.map((request) => request.text.length));
    assert.ok(largest < 4 * 3000, `no request is longer than the context: ${largest} bytes`);
    // The request for the summary begins with what was sent before: the cache serves it.
    const at = asked.findIndex(asksForSummary);
    const before = asked[at - 1].text;
    const sent = asked[at].text;
    const same = [...before].findIndex((c, i) => sent[i] !== c);
    assert.ok(same > before.length / 4, 'the summary is asked for with the same beginning');
    // What comes after it begins with it, and stays so.
    const after = asked.slice(at + 1, asked.findIndex((r, i) => i > at && asksForSummary(r)) >>> 0);
    assert.ok(after.length >= 1);
    for (const request of after) {
      assert.match(request.text, /replaced by this summary of it:\\n\\nThe owner counts birds; 41 so far\./);
      assert.ok(!request.text.includes('bird 1:'), 'what was summed up is not sent');
    }
    after.slice(1).forEach((next, i) => assertPrefix(after[i].text, next.text));
    const { turns } = await siskin.get(`/api/tabs/${tab.id}/turns`);
    const steps = turns.flatMap((turn) => turn.steps);
    assert.equal(steps.filter((step) => step.compaction).length, marks.length);
    const first = steps[steps.findIndex((step) => step.compaction) + 1];
    assert.equal(first.prefix.missCause, 'compaction');
  },
  { providerConfig: 'context_tokens = 3000\nmax_tokens = 400' },
);

both(
  'a conversation that the provider refuses as too long is shortened once and answered',
  async ({ wire, provider, siskin, tab }) => {
    for (let n = 1; n <= 4; n += 1) await siskin.turn(tab.id, birds(n));
    provider.answers = [TOO_LONG[wire]];
    provider.always = summing(say([text('fine')]));
    const before = provider.asked.length;
    const turn = await siskin.turn(tab.id, 'and now?');
    assert.equal(turn.stopReason, 'end');
    const rows = await siskin.log(tab.id);
    assert.deepEqual(kinds(rows), ['compacted']);
    assert.equal(provider.asked.length - before, 3, 'refused, summary, answer');
    assert.match(provider.asked.at(-1).text, /and now\?/);
    assert.equal(rows.at(-1).data.text, 'fine');
    assert.equal(rows.at(-1).step, 1, 'it is the same step');
  },
);

both(
  'in the middle of tool calls each call is run once, and none loses its result',
  async ({ wire, provider, siskin, tab }) => {
    fs.writeFileSync(path.join(tab.workdir, 'a'), 'forty-one');
    for (let n = 1; n <= 3; n += 1) await siskin.turn(tab.id, birds(n));
    const asks = say(() => [thinking('look'), call('read_file', { path: 'a' })]);
    provider.answers = [asks, asks, TOO_LONG[wire]];
    provider.always = summing(say([text('41')]));
    const turn = await siskin.turn(tab.id, 'how many?');
    assert.equal(turn.stopReason, 'end');
    const rows = await siskin.log(tab.id);
    const ids = rows.filter((row) => row.type === 'tool_result').map((row) => row.data.callId);
    assert.equal(ids.length, 2);
    assert.equal(new Set(ids).size, 2);
    const [mark] = compacted(rows);
    const calls = (list) => list.filter((row) => row.type === 'tool_call').map((row) => row.data.callId);
    const covered = rows.filter((row) => row.seq <= mark.data.upto);
    const answered = covered.filter((row) => row.type === 'tool_result').map((row) => row.data.callId);
    assert.deepEqual(calls(covered), answered, 'the cut is not between a call and its result');
  },
);

for (const [name, summary] of [
  ['is refused as too long itself', undefined],
  ['is empty', say([])],
  ['is longer than what it replaces', say([text('x'.repeat(14_000))])],
  ['only calls tools', say([call('list_files', { path: '.' })])],
]) {
  both(`a summary that ${name} is tried twice at most`, async ({ wire, provider, siskin, tab }) => {
    for (let n = 1; n <= 4; n += 1) await siskin.turn(tab.id, birds(n));
    const before = provider.asked.length;
    provider.always = summing(TOO_LONG[wire], summary ?? TOO_LONG[wire]);
    const turn = await siskin.turn(tab.id, 'and now?');
    assert.equal(turn.stopReason, 'error');
    const asked = provider.asked.slice(before);
    assert.equal(asked.filter(asksForSummary).length, 2);
    assert.ok(asked.length <= 4, `${asked.length} requests`);
    const rows = await siskin.log(tab.id);
    assert.equal(compacted(rows).length, 0);
    assert.equal(rows.at(-1).type, 'error');
    assert.match(rows.at(-1).data.message, /context|summary/);
    assert.match(rows.at(-1).data.message, /new tab|another model/);
    provider.always = say([text('ok')]);
    assert.equal((await siskin.turn(tab.id, 'shorter')).stopReason, 'end', 'the tab is not bricked');
  });
}

both(
  'a provider that finds everything too long is asked five times at most',
  async ({ wire, provider, siskin, tab }) => {
    for (let n = 1; n <= 6; n += 1) await siskin.turn(tab.id, birds(n));
    const before = provider.asked.length;
    provider.always = summing(TOO_LONG[wire]);
    const turn = await siskin.turn(tab.id, 'and now?');
    assert.equal(turn.stopReason, 'error');
    assert.ok(provider.asked.length - before <= 5, `${provider.asked.length - before} requests`);
    const rows = await siskin.log(tab.id);
    assert.match(rows.at(-1).data.message, /could not be shortened enough|longer than/);
  },
);

both(
  'a first message that is too long ends with a clear error and no summary',
  async ({ wire, provider, siskin, tab }) => {
    provider.always = TOO_LONG[wire];
    const turn = await siskin.turn(tab.id, 'x'.repeat(60_000));
    assert.equal(turn.stopReason, 'error');
    assert.equal(provider.asked.length, 1);
  },
);

both(
  'by hand: a turn of its own without a message, and messages wait meanwhile',
  async ({ provider, siskin, tab }) => {
    assert.equal((await siskin.api('POST', `/api/tabs/${tab.id}/compact`)).status, 409);
    for (let n = 1; n <= 3; n += 1) await siskin.turn(tab.id, birds(n));
    const peer = await siskin.peer();
    await peer.open(tab.id);
    let release;
    const held = new Promise((done) => {
      release = done;
    });
    provider.always = summing(say([text('after')]), async (exchange) => {
      await held;
      await say([text(SUMMARY)])(exchange);
    });
    assert.equal((await siskin.api('POST', `/api/tabs/${tab.id}/compact`)).status, 202);
    await until(() => provider.asked.some(asksForSummary), 'the request for the summary');
    assert.equal((await siskin.api('POST', `/api/tabs/${tab.id}/compact`)).status, 409);
    assert.equal((await siskin.send(tab.id, 'go on')).status, 'queued');
    release();
    await peer.turns(2);
    await siskin.idle(tab.id);
    const rows = await siskin.log(tab.id);
    assert.deepEqual(peer.rows, rows);
    const [mark] = compacted(rows);
    assert.deepEqual(
      rows.filter((row) => row.turnId === mark.turnId).map((row) => row.seq),
      [mark.seq],
      'its only row is the summary',
    );
    const { turns } = await siskin.get(`/api/tabs/${tab.id}/turns`);
    const turn = turns.find((other) => other.turnId === mark.turnId);
    assert.equal(turn.status, 'done');
    assert.equal(turn.steps.length, 1);
    assert.equal(turn.steps[0].compaction, true);
    assert.ok(turn.steps[0].usage.output > 0, 'its tokens are counted');
    assert.match(provider.asked.at(-1).text, /The owner counts birds/);
    assert.ok(!provider.asked.at(-1).text.includes('bird 1:'));
  },
);

both('a summary by hand that is of no use says that nothing was done', async ({ provider, siskin, tab }) => {
  for (let n = 1; n <= 3; n += 1) await siskin.turn(tab.id, birds(n));
  provider.always = summing(say([text('ok')]), say([]));
  await siskin.api('POST', `/api/tabs/${tab.id}/compact`);
  await siskin.idle(tab.id);
  assert.match((await siskin.log(tab.id)).at(-1).data.message, /was not shortened, .* no usable summary/);
  assert.equal((await siskin.turn(tab.id, 'go on')).stopReason, 'end');
});

both('a summary by hand is stopped at once', async ({ provider, siskin, tab }) => {
  for (let n = 1; n <= 3; n += 1) await siskin.turn(tab.id, birds(n));
  provider.always = (exchange) => exchange.silent();
  await siskin.api('POST', `/api/tabs/${tab.id}/compact`);
  await until(() => provider.asked.some(asksForSummary), 'the request for the summary');
  const since = Date.now();
  await siskin.api('POST', `/api/tabs/${tab.id}/stop`);
  await siskin.idle(tab.id);
  assert.ok(Date.now() - since < 1000);
  assert.deepEqual(kinds(await siskin.log(tab.id)), ['cancelled']);
  provider.always = say([text('ok')]);
  assert.equal((await siskin.turn(tab.id, 'go on')).stopReason, 'end');
  assert.match(provider.asked.at(-1).text, /bird 1:/, 'nothing was replaced');
});

both('a summary survives a killed server, as does the lack of one', async ({ provider, siskin, tab }) => {
  for (let n = 1; n <= 3; n += 1) await siskin.turn(tab.id, birds(n));
  provider.always = (exchange) => exchange.silent();
  await siskin.api('POST', `/api/tabs/${tab.id}/compact`);
  await until(() => provider.asked.some(asksForSummary), 'the request for the summary');
  await siskin.kill();
  await siskin.restart();
  assert.deepEqual(kinds(await siskin.log(tab.id)), ['interrupted']);
  provider.always = summing(say([text('ok')]));
  await siskin.api('POST', `/api/tabs/${tab.id}/compact`);
  await siskin.idle(tab.id);
  await siskin.kill();
  await siskin.restart();
  await siskin.turn(tab.id, 'go on');
  assert.match(provider.asked.at(-1).text, /The owner counts birds/);
});

both(
  'a new system prompt reaches an old tab with its next summary, and is told',
  async ({ provider, siskin, tab }) => {
    for (let n = 1; n <= 3; n += 1) await siskin.turn(tab.id, birds(n));
    await siskin.api('PUT', '/api/settings', { systemPrompt: 'Be a bird.' });
    await siskin.turn(tab.id, 'still the same');
    assert.ok(!provider.asked.at(-1).text.includes('Be a bird.'), 'the prefix is frozen');
    provider.always = summing(say([text('tweet')]));
    await siskin.api('POST', `/api/tabs/${tab.id}/compact`);
    await siskin.idle(tab.id);
    await siskin.turn(tab.id, 'and now?');
    assert.match(provider.asked.at(-1).text, /Be a bird\./);
    assert.deepEqual(kinds(await siskin.log(tab.id)), ['compacted', 'prompt-changed']);
  },
);

test('a server that leaves the beginning out is noticed, told, and relieved', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider, wires: ['o'] });
  const tab = await siskin.newTab({ model: 'o/scripted' });
  const full = { input: 4096, cacheRead: 0, cacheWrite: 0, output: 9 };
  provider.always = summing(say([text('hm')], { usage: full }));
  for (let n = 0; n < 2; n += 1)
    assert.equal((await siskin.turn(tab.id, 'feather '.repeat(2250))).stopReason, 'end');
  const rows = await siskin.log(tab.id);
  const notice = rows.find((row) => row.data.kind === 'notice');
  assert.match(notice.data.text, /4096 tokens .*context_tokens of provider o/);
  await siskin.turn(tab.id, 'go on');
  assert.equal(compacted(await siskin.log(tab.id)).length, 1, 'what it can take is known now');
});

test('an empty answer at the output limit is said to be empty', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  for (const model of Object.values(WIRES)) {
    const tab = await siskin.newTab({ model });
    const usage = { input: 0, cacheRead: 0, cacheWrite: 0, output: 0 };
    provider.answers = [say([], { stop: 'max', usage })];
    const turn = await siskin.turn(tab.id, 'hello');
    assert.equal(turn.stopReason, 'max_tokens');
    const rows = await siskin.log(tab.id);
    assert.match(rows.at(-1).data.text, /output limit .*before it said anything/);
  }
  assert.equal(provider.asked.length, 2);
});

test('tokens_per_day ends a turn with the way out, and holds over a restart', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider, config: 'tokens_per_day = 1000' });
  const tab = await siskin.newTab();
  provider.always = say([text('ok')], { usage: { input: 400, cacheRead: 50, cacheWrite: 50, output: 100 } });
  assert.equal((await siskin.turn(tab.id, 'one')).stopReason, 'end');
  assert.equal((await siskin.turn(tab.id, 'two')).stopReason, 'end');
  for (const again of [false, true]) {
    if (again) await siskin.restart();
    assert.equal((await siskin.turn(tab.id, 'three')).stopReason, 'limit');
    const rows = await siskin.log(tab.id);
    assert.equal(rows.at(-1).data.kind, 'limit');
    assert.match(rows.at(-1).data.text, /1200 tokens .* limit is 1000 \(tokens_per_day\)/);
  }
  assert.equal(provider.asked.length, 2);
});

test('the size that an answer which filled its context tells is that of request and answer', async (t) => {
  // Bug: the size was learned without the answer. Effect: every later request was shortened. Mend: with it.
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  const tab = await siskin.newTab({ model: WIRES.anthropic });
  for (let n = 1; n <= 3; n += 1) await siskin.turn(tab.id, birds(n));
  const usage = { input: 1500, cacheRead: 0, cacheWrite: 0, output: 6000 };
  provider.answers = [say([text('a long story')], { stop: 'model_context_window_exceeded', usage })];
  assert.equal((await siskin.turn(tab.id, 'tell')).stopReason, 'error');
  provider.always = summing(say([text('fine')], { usage: { ...usage, output: 9 } }));
  for (let n = 1; n <= 2; n += 1) assert.equal((await siskin.turn(tab.id, 'and now?')).stopReason, 'end');
  assert.equal(provider.asked.filter(asksForSummary).length, 0, 'there is room');
});

both('what a stop left in the queue waits on after a summary, and goes with what comes', async ({
  provider,
  siskin,
  tab,
}) => {
  for (let n = 1; n <= 3; n += 1) await siskin.turn(tab.id, birds(n));
  provider.always = (exchange) => exchange.silent();
  await siskin.send(tab.id, 'think');
  await siskin.send(tab.id, 'left behind');
  await until(() => provider.asked.some((request) => /think/.test(request.text)), 'the request');
  await siskin.api('POST', `/api/tabs/${tab.id}/stop`);
  await siskin.idle(tab.id);
  let release;
  const held = new Promise((done) => {
    release = done;
  });
  provider.always = summing(say([text('ok')]), async (exchange) => {
    await held;
    await say([text(SUMMARY)])(exchange);
  });
  const compact = async () => {
    const asked = provider.asked.filter(asksForSummary).length;
    assert.equal((await siskin.api('POST', `/api/tabs/${tab.id}/compact`)).status, 202);
    await until(() => provider.asked.filter(asksForSummary).length > asked, 'the request for the summary');
  };
  await compact();
  release();
  await siskin.idle(tab.id);
  const users = async () => (await siskin.log(tab.id)).filter((row) => row.role === 'user').length;
  assert.equal(await users(), 4, 'it still waits');
  assert.equal((await siskin.send(tab.id, 'now')).status, 'started');
  await siskin.idle(tab.id);
  assert.equal(await users(), 6, 'and went with what came');
});
