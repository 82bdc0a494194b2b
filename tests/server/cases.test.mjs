// Small inputs that have broken systems which do this job, each with its right result, against the whole
// server. What needs a longer story stands in the other files.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { Siskin, textOf } from '../fixture.mjs';
import { assertPrefix } from '../body.mjs';
import { call, encode, events, Provider, refuse, say, stream, text } from '../provider.mjs';

const WIRES = { anthropic: 'a/scripted', openai: 'o/scripted' };

async function setUp(t, options = {}) {
  const provider = await Provider.start(options.provider);
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { budget: { attempts: 2 }, ...options, provider });
  return { provider, siskin };
}

function both(name, body, options = {}) {
  for (const [wire, model] of Object.entries(options.only ?? WIRES)) {
    test(`${wire}: ${name}`, async (t) => {
      const { provider, siskin } = await setUp(t, options);
      const tab = await siskin.newTab({ model });
      await body({ t, wire, model, provider, siskin, tab });
      assert.equal(provider.fault, undefined);
      assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
    });
  }
}

const OPENAI = { only: { openai: 'o/scripted' } };

/** An answer of these bytes, whatever they are. */
const raw = (bytes, options) => (exchange) => stream(exchange, Buffer.from(bytes), options);

/** The events of an answer without what only some servers send after its end. */
function bare(wire, parts) {
  const all = events(wire, parts);
  return wire === 'openai' ? all.slice(0, -2) : all;
}

const ofTurn = async (siskin, tab, turn) =>
  (await siskin.log(tab.id)).filter((row) => row.turnId === turn.turnId);

/** The text of a turn's answer, and its last row's message if that is an error. */
async function outcome(siskin, tab, turn) {
  const rows = await ofTurn(siskin, tab, turn);
  return [turn.stopReason, textOf(rows), rows.at(-1).data.message ?? ''];
}

// --- The stream's grammar ---

both('the last event may lack its end, half of one may not', async ({ wire, provider, siskin, tab }) => {
  const whole = encode(bare(wire, [text('é', '👍')]))
    .toString()
    .trimEnd();
  for (const tail of ['', '\n', '\n\n', '\r\n', '\r']) {
    provider.answers = [raw(whole + tail)];
    const turn = await siskin.turn(tab.id, 'go');
    assert.deepEqual(await outcome(siskin, tab, turn), ['end', 'é👍', ''], JSON.stringify(tail));
  }
  for (const lost of [1, 2, 10, 20]) {
    provider.answers = [raw(whole.slice(0, -lost))];
    const turn = await siskin.turn(tab.id, 'go');
    assert.deepEqual((await outcome(siskin, tab, turn)).slice(0, 2), ['cut', 'é👍'], `${lost} bytes short`);
  }
});

both('line ends of all kinds may mix', async ({ wire, provider, siskin, tab }) => {
  // In this order no CR comes right before a LF, which would be one end instead of two.
  const ends = ['\n', '\r', '\r\n'];
  for (let first = 0; first < ends.length; first += 1) {
    let count = first;
    const mixed = encode(events(wire, [text('é', '👍', 'x')]))
      .toString()
      .replaceAll('\n', () => ends[(count += 1) % 3]);
    for (const split of [0, 1]) {
      provider.answers = [raw(mixed, { split })];
      const turn = await siskin.turn(tab.id, 'go');
      assert.deepEqual(await outcome(siskin, tab, turn), ['end', 'é👍x', '']);
    }
  }
});

both(
  'comments, empty events and what is no JSON stand anywhere in a stream',
  async ({ wire, provider, siskin, tab }) => {
    const noise = ': OPENROUTER PROCESSING\n\n'.repeat(3) + 'data: : x\n\ndata:\n\n';
    const all = events(wire, [text('one ', 'two')]).map((event) => encode([event]).toString());
    provider.answers = [raw(`data: hello\n\n${all.map((event) => noise + event + noise).join('')}`)];
    const turn = await siskin.turn(tab.id, 'go');
    assert.deepEqual(await outcome(siskin, tab, turn), ['end', 'one two', '']);
    assert.match(siskin.stderr, /skipped.*hello/);
  },
  { config: 'log = "debug"' },
);

both('an answer that only lacks its very end is cut', async ({ wire, provider, siskin, tab }) => {
  const all = events(wire, [text('one ', 'two ', 'three '), call('system_info', {})]);
  const at = (fits) => all.findIndex(({ data }) => fits.test(data)) + 1;
  const cuts =
    wire === 'anthropic'
      ? {
          'after 3 deltas': at(/three/),
          'after content_block_stop': at(/content_block_stop/),
          'inside the call': at(/input_json_delta/),
          'after the call': all.length - 2,
          'after message_delta': all.length - 1,
        }
      : {
          'after 3 deltas': at(/three/),
          'inside the call': at(/system_info/),
          'after the call': all.length - 3,
        };
  for (const [name, count] of Object.entries(cuts)) {
    provider.answers = [raw(encode(all.slice(0, count)))];
    const asked = provider.asked.length;
    const turn = await siskin.turn(tab.id, name);
    assert.equal(turn.stopReason, 'cut', name);
    const rows = await ofTurn(siskin, tab, turn);
    assert.equal(textOf(rows), 'one two three ', name);
    assert.equal(provider.asked.length, asked + 1, name);
    for (const row of rows) if (row.type === 'tool_result') assert.match(row.data.result, /not run/, name);
  }
  assert.equal((await siskin.turn(tab.id, 'go on')).stopReason, 'end');
});

// --- Errors inside a 200 stream ---

const TWO = (wire) => {
  const all = events(wire, [text('one ', 'two ', 'three')]);
  return encode(all.slice(0, all.findIndex(({ data }) => data.includes('two')) + 1)).toString();
};

// What is sent, and whether it is worth another try while nothing was shown.
const INSIDE = {
  openai: [
    ['data: {"error":{"message":"boom","code":500}}\n\n', true],
    ['data: {"object":"error","message":"boom"}\n\n', false],
    ['data: {"object":"error","message":"boom","type":"BadRequestError","param":null,"code":400}\n\n', false],
    ['error: {"code":500,"message":"boom","type":"server_error"}\n\n', true],
    ['event: error\ndata: {"error":{"message":"boom"}}\n\n', false],
    ['event: error\ndata: {"error":"boom"}\n\n', false],
    ['event: error\ndata: "boom"\n\n', false],
    ['event: error\ndata: boom\n\n', false],
    ['data: {"error":"boom"}\n\n', false],
    ['data: {"detail":"boom"}\n\n', false],
    ['data: {"detail":[{"loc":["body"],"msg":"boom"}]}\n\n', false],
    ['data: {"error":{"code":"502","message":"boom","metadata":{"provider_name":"x"}},', true, true],
    ['data: {"error":{"code":429,"message":"boom"},', true, true],
    ['data: {"error":{"code":402,"message":"boom"},', false, true],
    ['data: {"error":{"message":"boom","code":null,"type":"server_error"}}\n\ndata: [DONE]\n\n', true],
  ].map(([bytes, again, beside]) => [
    beside ? `${bytes}"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}\n\n` : bytes,
    again,
  ]),
  anthropic: [
    ['event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"boom"}}\n\n', true],
    ['event: error\ndata: {"type":"error","error":{"type":"api_error","message":"boom"}}\n\n', true],
    [
      'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error","message":"boom"}}\n\n',
      false,
    ],
    ['data: {"type":"error","error":{"type":"rate_limit_error","message":"boom"}}\n\n', true],
    ['event: error\ndata: {"error":"boom"}\n\n', false],
    ['event: error\ndata: "boom"\n\n', false],
    ['event: error\ndata: boom\n\n', false],
  ],
};

both('an error inside a stream, in every form', async ({ wire, provider, siskin, tab }) => {
  for (const [inside, again] of INSIDE[wire]) {
    provider.answers = [raw(TWO(wire) + inside)];
    let asked = provider.asked.length;
    let turn = await siskin.turn(tab.id, 'go');
    let [stop, shown, message] = await outcome(siskin, tab, turn);
    assert.deepEqual([stop, shown], ['cut', 'one two '], inside);
    assert.match(message, /boom/, inside);
    assert.equal(provider.asked.length, asked + 1, `${inside}: asked again though something was shown`);
    provider.answers = [raw(inside), say('at last')];
    asked = provider.asked.length;
    turn = await siskin.turn(tab.id, 'go');
    [stop, shown, message] = await outcome(siskin, tab, turn);
    assert.deepEqual([stop, shown], again ? ['end', 'at last'] : ['error', ''], inside);
    if (!again) assert.match(message, /boom/, inside);
    assert.equal(provider.asked.length, asked + (again ? 2 : 1), inside);
  }
  provider.answers = [];
  assert.equal((await siskin.turn(tab.id, 'go on')).stopReason, 'end');
});

both(
  'a finish_reason that is an error, and an end that says nothing',
  async ({ provider, siskin, tab }) => {
    const finish = (reason) =>
      `data: {"choices":[{"index":0,"delta":{},"finish_reason":"${reason}"}]}\n\ndata: [DONE]\n\n`;
    for (const reason of ['error', 'insufficient_system_resource']) {
      provider.answers = [raw(TWO('openai') + finish(reason))];
      const turn = await siskin.turn(tab.id, 'go');
      const [stop, shown, message] = await outcome(siskin, tab, turn);
      assert.deepEqual([stop, shown], ['cut', 'one two '], reason);
      assert.match(message, new RegExp(reason));
    }
    // A failure in the middle, as one server tells it: an empty delta, and then the end.
    const empty = 'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n';
    provider.answers = [raw(TWO('openai') + empty)];
    assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'cut');
    provider.answers = [raw(empty), say('at last')];
    const turn = await siskin.turn(tab.id, 'go');
    assert.deepEqual((await outcome(siskin, tab, turn)).slice(0, 2), ['end', 'at last']);
  },
  OPENAI,
);

both('an answer without anything in it is said to be empty', async ({ wire, provider, siskin, tab }) => {
  const empty =
    wire === 'anthropic'
      ? encode(events(wire, []))
      : 'data: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n' +
        'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n';
  provider.answers = [raw(empty)];
  const turn = await siskin.turn(tab.id, 'go');
  assert.equal(turn.stopReason, 'end');
  assert.equal(provider.asked.length, 1);
  const rows = await ofTurn(siskin, tab, turn);
  assert.deepEqual(
    rows.map((row) => [row.role, row.type, row.data.text]),
    [
      ['user', 'text', 'go'],
      ['system', 'system', 'The model gave an empty answer.'],
    ],
  );
  assert.equal((await siskin.turn(tab.id, 'go on')).stopReason, 'end');
});

// --- Calls ---

/** A stream of one call to system_info whose arguments come in a strange way. */
function strangeCall(wire, middle) {
  const all = events(wire, [call('system_info', ['{}'], `call_${Math.random().toString(36).slice(2)}`)]);
  const lines = encode(all).toString();
  return wire === 'anthropic'
    ? lines.replace(/(event: content_block_delta\ndata: .*\n\n)+/, middle)
    : lines
        .replaceAll(/data: .*"tool_calls":\[\{"index":0,"function":\{"arguments":"\{\}"\}.*\n\n/g, '')
        .replace(',"arguments":""', middle);
}

both('a call without arguments has an empty object', async ({ wire, provider, siskin, tab }) => {
  const delta = (part) =>
    'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,' +
    `"delta":{"type":"input_json_delta","partial_json":"${part}"}}\n\n`;
  const middles =
    wire === 'anthropic'
      ? ['', delta(''), delta('{}')]
      : ['', ',"arguments":""', ',"arguments":null', ',"arguments":{}', ',"arguments":"{}"'];
  for (const middle of middles) {
    provider.answers = [raw(strangeCall(wire, middle)), say('ok')];
    const turn = await siskin.turn(tab.id, 'go');
    assert.equal(turn.stopReason, 'end', middle);
    const rows = await ofTurn(siskin, tab, turn);
    assert.equal(rows.find((row) => row.type === 'tool_call').data.arguments, '{}', middle);
    assert.equal(rows.filter((row) => row.type === 'tool_result').at(-1).data.isError, false, middle);
    const sent = provider.asked.at(-1).json.messages.findLast((one) => one.role === 'assistant');
    if (wire === 'anthropic') assert.deepEqual(sent.content.at(-1).input, {});
    else assert.equal(sent.tool_calls[0].function.arguments, '{}');
  }
});

test('openai: a call whose id is null or missing gets one, the same in call and result', async (t) => {
  const { provider, siskin } = await setUp(t);
  const tab = await siskin.newTab({ model: 'o/scripted' });
  const ids = [];
  for (const id of ['"id":null,', '', '"id":"",', '"id":"call_0",', '"id":"call_0",']) {
    const bytes = encode(events('openai', [call('system_info', {}, 'XXX')]));
    provider.answers = [raw(bytes.toString().replaceAll('"id":"XXX",', id)), say('ok')];
    assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'end', id);
    const { messages } = provider.asked.at(-1).json;
    const [made] = messages.findLast((one) => one.tool_calls).tool_calls;
    assert.match(made.id, /^[a-zA-Z0-9_-]+$/);
    assert.equal(messages.findLast((one) => one.role === 'tool').tool_call_id, made.id);
    ids.push(made.id);
  }
  assert.equal(new Set(ids).size, ids.length, 'unique in the conversation');
  // The other API is stricter: it must take the same history.
  await siskin.api('PATCH', `/api/tabs/${tab.id}`, { model: 'a/scripted' });
  assert.equal((await siskin.turn(tab.id, 'and you?')).stopReason, 'end');
  assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
  assert.equal((provider.asked.at(-1).text.match(/"type":"tool_use"/g) ?? []).length, ids.length);
});

both(
  'five calls in one answer: all results in one piece and in order, then what was said meanwhile',
  async ({ wire, provider, siskin, tab }) => {
    fs.writeFileSync(path.join(siskin.workdir, 'a'), 'A\n');
    const calls = [
      call('read_file', { path: 'a' }),
      call('read_file', { path: 'no such file' }),
      call('system_info'),
      call('list_files', { path: '.' }),
      call('read_file', { path: '../../outside' }),
    ];
    let release;
    const released = new Promise((done) => {
      release = done;
    });
    provider.answers = [
      async (exchange) => {
        const bytes = encode(events(wire, [text('I look.'), ...calls]));
        await stream(exchange, bytes, {
          cutAt: bytes.length - 60,
          then: async () => {
            await released;
            await exchange.body(bytes.subarray(bytes.length - 60));
            exchange.end();
          },
        });
      },
    ];
    await siskin.send(tab.id, 'go');
    await provider.next();
    await siskin.send(tab.id, 'and be quick');
    release();
    await siskin.idle(tab.id);
    const { messages } = provider.asked[1].json;
    const from = messages.findLastIndex((one) => JSON.stringify(one).includes('I look.'));
    const after = messages.slice(from + 1);
    const ids = calls.map((one) => one.call.id);
    if (wire === 'anthropic') {
      assert.equal(after.length, 1, 'one user message');
      const blocks = after[0].content;
      assert.deepEqual(
        blocks.map((block) => block.tool_use_id ?? block.text),
        [...ids, 'and be quick'],
      );
      assert.deepEqual(
        blocks.map((block) => block.is_error ?? false),
        [false, true, false, false, true, false],
      );
    } else {
      assert.deepEqual(after.slice(0, 5).map((one) => one.role), Array(5).fill('tool'));
      const called = messages[from].tool_calls.map((one) => one.id);
      assert.deepEqual(after.slice(0, 5).map((one) => one.tool_call_id), called);
      assert.equal(after.at(-1).content, 'and be quick');
    }
    assertPrefix(provider.asked[0].text, provider.asked[1].text);
  },
);

both('a file of random bytes is told by its size', async ({ provider, siskin, tab }) => {
  fs.writeFileSync(path.join(siskin.workdir, 'random'), randomBytes(100_000));
  provider.answers = [say([call('read_file', { path: 'random' })]), say('ok')];
  const turn = await siskin.turn(tab.id, 'go');
  const [result] = (await ofTurn(siskin, tab, turn)).filter((row) => row.type === 'tool_result');
  assert.match(result.data.result, /100.?000 bytes/);
  assert.ok(result.bytes < 1000);
});

// --- Work ---

/** Processor time of the server in ms, all threads together. */
function spent(siskin) {
  const fields = fs.readFileSync(`/proc/${siskin.pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return (Number(fields[11]) + Number(fields[12])) * 10;
}

both(
  'the work of a call grows no faster than its arguments',
  async ({ provider, siskin, tab }) => {
    const work = async (bytes) => {
      const args = JSON.stringify({ path: 'nowhere', extra: 'x'.repeat(bytes) });
      provider.answers = [say([call('read_file', args.match(/.{1,30}/g))], { split: 16_384 }), say('ok')];
      const before = spent(siskin);
      assert.equal((await siskin.turn(tab.id, 'go', 60_000)).stopReason, 'end');
      return spent(siskin) - before;
    };
    await work(75_000);
    const small = Math.max(await work(75_000), 30);
    const large = await work(300_000);
    assert.ok(large < 6 * small, `${small} ms for 75 KB, ${large} ms for 300 KB`);
  },
  { budget: { attempts: 2, arguments_bytes: 400_000 } },
);
