// The scripted provider itself: that it refuses what the real API refuses, and accepts what is right.

import assert from 'node:assert/strict';
import http from 'node:http';
import test from 'node:test';
import { assertPrefix, blocks } from './body.mjs';
import { call, encode, events, mute, Provider, refuse, say, text, thinking } from './provider.mjs';
import { Bindings, checkAnthropic, checkOpenai } from './strict.mjs';

const tools = [{ name: 'read_file', description: 'reads', input_schema: { type: 'object' } }];
const user = (...content) => ({ role: 'user', content });
const assistant = (...content) => ({ role: 'assistant', content });
const said = (value) => ({ type: 'text', text: value });
const use = (id, input = {}) => ({ type: 'tool_use', id, name: 'read_file', input });
const result = (id, more = {}) => ({ type: 'tool_result', tool_use_id: id, content: 'x', ...more });
const body = (messages, more = {}) => ({
  model: 'm',
  max_tokens: 10,
  stream: true,
  tools,
  messages,
  ...more,
});
const mark = { cache_control: { type: 'ephemeral' } };

const anthropic = [
  ['a plain message', [user(said('hi'))], null],
  ['a call and its result', [user(said('a')), assistant(use('t1')), user(result('t1'), said('and'))], null],
  [
    'an empty result',
    [user(said('a')), assistant(use('t1')), user({ type: 'tool_result', tool_use_id: 't1' })],
    null,
  ],
  [
    'a call without a result',
    [user(said('a')), assistant(use('t1')), user(said('b'))],
    /without `tool_result`/,
  ],
  ['a call without a next message', [user(said('a')), assistant(use('t1'))], /end with a user message/],
  [
    'a late result',
    [user(said('a')), assistant(use('t1')), user(said('b')), assistant(said('c')), user(result('t1'))],
    /without `tool_result`/,
  ],
  [
    'an orphan result',
    [user(said('a')), assistant(said('b')), user(result('t1'))],
    /unexpected `tool_use_id`/,
  ],
  [
    'a result twice',
    [user(said('a')), assistant(use('t1')), user(result('t1'), result('t1'))],
    /single result/,
  ],
  [
    'text before results',
    [user(said('a')), assistant(use('t1')), user(said('b'), result('t1'))],
    /come first/,
  ],
  [
    'an id twice',
    [user(said('a')), assistant(use('t1')), user(result('t1')), assistant(use('t1')), user(result('t1'))],
    /ids must be unique/,
  ],
  ['a bad id', [user(said('a')), assistant(use('call:0')), user(result('call:0'))], /pattern/],
  [
    'input that is no object',
    [user(said('a')), assistant(use('t1', 'x')), user(result('t1'))],
    /valid dictionary/,
  ],
  ['empty text', [user(said('a')), assistant(said('')), user(said('b'))], /non-empty/],
  ['blank text', [user(said(' \n'))], /non-whitespace/],
  ['two users in a row', [user(said('a')), user(said('b'))], /alternate/],
  ['an assistant first', [assistant(said('a')), user(said('b'))], /first message/],
  [
    'unsigned thinking',
    [user(said('a')), assistant({ type: 'thinking', thinking: 'x', signature: '' }), user(said('b'))],
    /Invalid `signature`/,
  ],
  [
    'thinking without a signature',
    [user(said('a')), assistant({ type: 'thinking', thinking: 'x' }), user(said('b'))],
    /Field required/,
  ],
  [
    'thinking of the owner',
    [user({ type: 'thinking', thinking: 'x', signature: 's' })],
    /only be in assistant/,
  ],
  ['a field that is not known', [user({ ...said('a'), index: 0 })], /Extra inputs/],
  ['a message with an id', [{ ...user(said('a')), id: 'x' }], /Extra inputs/],
  ['a block of an unknown type', [user({ type: 'note' })], /unknown block type/],
  ['a message without blocks', [user(said('a')), assistant(), user(said('b'))], /non-empty content/],
  [
    'a system role in between',
    [user(said('a')), { role: 'system', content: 'x' }, user(said('b'))],
    /unknown role/,
  ],
  [
    'a name with dots',
    [user(said('a')), assistant({ ...use('t1'), name: 'a.b' }), user(result('t1'))],
    /pattern/,
  ],
  ['an empty id', [user(said('a')), assistant(use('')), user(result(''))], /pattern/],
  [
    'a blank result',
    [user(said('a')), assistant(use('t1')), user(result('t1', { content: ' ' }))],
    /non-whitespace/,
  ],
  [
    'an empty text in a result',
    [user(said('a')), assistant(use('t1')), user(result('t1', { content: [said('')] }))],
    /non-empty/,
  ],
  [
    'an image in an error',
    [
      user(said('a')),
      assistant(use('t1')),
      user(result('t1', { content: [{ type: 'image' }], is_error: true })),
    ],
    /all content must be type/,
  ],
  ['a call of the owner', [user(use('t1'))], /only be in assistant/],
  ['an answer at the end', [user(said('a')), assistant(said('b'))], /end with a user message/],
  ['NUL in a key', [user(said('a')), assistant(use('t1', { 'a\0': 1 })), user(result('t1'))], /NUL/],
  ['NUL', [user(said('a\0b'))], /NUL/],
  ['half a surrogate pair', [user(said('a\ud83d'))], /Unicode/],
];

test('the strict check refuses what the Messages API refuses', () => {
  for (const [name, messages, expected] of anthropic) {
    const fault = checkAnthropic(body(messages));
    if (expected) assert.match(fault?.message ?? 'accepted', expected, name);
    else assert.equal(fault, null, name);
  }
  const hi = [user(said('hi'))];
  assert.match(checkAnthropic(body(hi, { top: 1 })).message, /Extra inputs/);
  assert.match(checkAnthropic(body(hi, { tools: [...tools, ...tools] })).message, /unique/);
  assert.match(
    checkAnthropic(body(hi, { tools: [{ name: 'a.b', input_schema: { type: 'object' } }] })).message,
    /pattern/,
  );
  const five = Array.from({ length: 5 }, (_, n) => ({ ...said(`${n}`), ...mark }));
  assert.match(checkAnthropic(body([user(...five)])).message, /maximum of 4/);
  assert.equal(checkAnthropic(body([user(...five.slice(1))])), null);
  assert.match(checkAnthropic(body(hi, { system: [said('')] })).message, /non-empty/);
  assert.match(
    checkAnthropic(body([user(said('a')), assistant(use('t1')), user(result('t1'))], { tools: [] })).message,
    /tools: Field required/,
  );
  assert.match(
    checkAnthropic(
      body(hi, { model: 'claude-sonnet-5-5', thinking: { type: 'enabled', budget_tokens: 2000 } }),
    ).message,
    /not supported/,
  );
});

const forms = [
  // model, fields, the refusal
  ['claude-opus-5-5', { thinking: { type: 'adaptive', display: 'summarized' } }, null],
  ['claude-opus-5-5', { thinking: { type: 'disabled' } }, /disabled" is not supported/],
  ['claude-fable-5-1', { thinking: { type: 'enabled', budget_tokens: 2000 } }, /enabled" is not supported/],
  ['claude-sonnet-5-5', { thinking: { type: 'between_tools' } }, null],
  ['claude-sonnet-5-5', { thinking: { type: 'disabled' } }, /Use "thinking.type.between_tools/],
  ['claude-opus-5', { thinking: { type: 'between_tools' } }, /not supported/],
  ['claude-opus-5', { thinking: { type: 'disabled' }, output_config: { effort: 'high' } }, null],
  ['claude-opus-5', { thinking: { type: 'disabled' }, output_config: { effort: 'max' } }, /not supported/],
  ['claude-sonnet-5', { thinking: { type: 'disabled' }, output_config: { effort: 'max' } }, null],
  ['claude-opus-4.7', { thinking: { type: 'enabled', budget_tokens: 2000 } }, /not supported/],
  ['claude-opus-4-6', { thinking: { type: 'enabled', budget_tokens: 2000 } }, null],
  ['claude-opus-4-5', { thinking: { type: 'adaptive' } }, /adaptive" is not supported/],
  ['claude-opus-4-5-20251101', { output_config: { effort: 'low' } }, null],
  ['claude-sonnet-4-5', { output_config: { effort: 'low' } }, /effort/],
  ['claude-haiku-4-5', { thinking: { type: 'enabled', budget_tokens: 1000 } }, /at least 1024/],
  ['claude-haiku-4-5', { thinking: { type: 'enabled', budget_tokens: 5000 } }, /must be greater/],
  ['claude-haiku-4-5', { thinking: { type: 'enabled', budget_tokens: 2000, effort: 1 } }, /Extra inputs/],
  ['claude-3-5-haiku', { thinking: { type: 'adaptive' } }, /not supported/],
  ['local', { thinking: { type: 'adaptive' }, output_config: { effort: 'xhigh' } }, null],
  ['local', { thinking: { type: 'sometimes' } }, /valid form/],
  ['local', { thinking: { type: 'adaptive', display: 'all' } }, /display/],
  ['local', { output_config: { effort: 'huge' } }, /effort/],
  ['local', { output_config: { efforts: 'low' } }, /Extra inputs/],
  ['claude-opus-5-5', { tool_choice: { type: 'any' } }, /forces tool use/],
  ['local', { tool_choice: { type: 'any' }, thinking: { type: 'enabled', budget_tokens: 2000 } }, /forces/],
  ['local', { tool_choice: { type: 'auto' } }, null],
  ['local', { tool_choice: { type: 'auto' }, tools: undefined }, /while providing tools/],
  ['local', { temperature: 1 }, /Extra inputs/],
];

test('thinking and effort are taken in the forms of each family of models', () => {
  for (const [model, more, expected] of forms) {
    const fault = checkAnthropic(body([user(said('hi'))], { model, max_tokens: 4000, ...more }));
    const name = `${model} ${JSON.stringify(more)}`;
    if (expected) assert.match(fault?.message ?? 'accepted', expected, name);
    else assert.equal(fault, null, name);
  }
});

test('the answer whose calls are answered begins with thinking where a budget for it is given', () => {
  const model = 'claude-haiku-4-5';
  const bindings = new Bindings();
  bindings.bind('sig', body([user(said('a'))], { model }));
  const thought = { type: 'thinking', thinking: 'x', signature: 'sig' };
  const check = (answer, thinking, after = result('t1')) =>
    checkAnthropic(
      body([user(said('a')), assistant(...answer), user(after)], { model, max_tokens: 4000, thinking }),
      bindings,
    )?.message ?? 'accepted';
  const budget = { type: 'enabled', budget_tokens: 2000 };
  assert.equal(check([thought, use('t1')], budget), 'accepted');
  assert.match(check([use('t1')], budget), /Expected `thinking`.*found `tool_use`/);
  assert.match(check([said('b'), thought, use('t1')], budget), /Expected `thinking`.*found `text`/);
  assert.equal(check([use('t1')], undefined), 'accepted');
  assert.match(check([thought, use('t1')], undefined), /When thinking is disabled/);
  assert.equal(check([said('b')], budget, said('c')), 'accepted', 'a new turn has no such rule');
});

test('cache marks are few, in order, and only where they may stand', () => {
  const marked = (ttl) => ({ cache_control: { type: 'ephemeral', ...(ttl ? { ttl } : {}) } });
  const check = (more, messages = [user(said('a'))]) =>
    checkAnthropic(body(messages, more))?.message ?? 'accepted';
  const texts = (...ttls) => [user(...ttls.map((ttl, n) => ({ ...said(`${n}`), ...marked(ttl) })))];
  assert.equal(check({}, texts('1h', '1h', undefined, '5m')), 'accepted');
  assert.match(check({}, texts('5m', '1h')), /1h' cache_control block must not come after/);
  assert.match(check({ tools: [{ ...tools[0], ...marked() }] }, texts('1h')), /must not come after/);
  assert.match(check({}, texts('2h')), /ttl/);
  assert.match(check({}, [user({ ...said('a'), cache_control: { type: 'eternal' } })]), /unknown/);
  assert.match(check({}, [user({ ...said(''), ...marked() })]), /empty text/);
  assert.match(check({ ...marked() }, texts(undefined, undefined, undefined, undefined)), /accepted/);
  const four = texts(undefined, undefined, undefined, undefined);
  four[0].content.push(said('last'));
  assert.match(check({ ...marked() }, four), /maximum of 4/);
  assert.match(check({ ...marked('5m') }, texts('1h')), /another ttl/);
  assert.match(check({ system: [{ type: 'image', text: 'x' }] }), /'text'/);
  assert.match(check({ system: [{ ...said('s'), id: 1 }] }), /Extra inputs/);
  assert.match(check({ tools: [{ ...tools[0], parameters: {} }] }), /Extra inputs/);
});

test('what other programs would make of a request does not matter: bytes are judged', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const good = body([user(said('a'))]);
  const raw = (bytes, headers) => postRaw(provider, '/v1/messages', Buffer.from(bytes), headers);
  assert.equal((await raw(JSON.stringify(good))).status, 200);
  assert.match((await raw('{')).text, /not JSON/);
  assert.match(
    (await raw(Buffer.from(JSON.stringify(good).replace('"a"', '"\xff"'), 'latin1'))).text,
    /UTF-8/,
  );
  const big = body([user(said('a'.repeat(33 * 1024 * 1024)))]);
  assert.equal((await raw(JSON.stringify(big))).status, 413);
  assert.equal((await raw(JSON.stringify(good), { 'anthropic-version': '2020-01-01' })).status, 400);
  assert.equal((await raw(JSON.stringify(good), { 'content-type': 'text/plain' })).status, 415);
  assert.equal((await postRaw(provider, '/messages', Buffer.from('{}'))).status, 404);
});

test('thinking is bound to all that stands before it', () => {
  const first = body([user(said('a'))], { system: [said('s')] });
  const thought = { type: 'thinking', thinking: 'hm', signature: 'sig' };
  const bindings = new Bindings();
  bindings.bind('sig', first);
  const check = (messages, more = {}) =>
    checkAnthropic({ ...first, messages, ...more }, bindings)?.message ?? null;
  const history = [user(said('a')), assistant(thought, said('b')), user(said('c'))];
  assert.equal(check(history), null);
  assert.equal(check([user({ ...said('a'), ...mark }), ...history.slice(1)]), null, 'a mark does not count');
  assert.match(check(history, { system: [said('other')] }), /different conversation/);
  assert.match(check(history, { tools: [] }), /different conversation/);
  assert.match(check([user(said('A')), ...history.slice(1)]), /different conversation/);
  assert.match(
    check([history[0], assistant({ ...thought, ...mark }, said('b')), history[2]]),
    /Extra inputs|cache_control/,
  );
  assert.match(check(history, { model: 'other' }), /made by m/, 'thinking of another model');
  assert.equal(check([user({ text: 'a', type: 'text' }), ...history.slice(1)]), null, 'nor does key order');
  bindings.bind('sig2', { ...first, messages: history });
  const later = { type: 'thinking', thinking: '', signature: 'sig2' };
  const plain = assistant(said('b'));
  const longer = [...history, assistant(later, said('d')), user(said('e'))];
  assert.equal(check(longer), null);
  assert.equal(check([longer[0], plain, ...longer.slice(2)]), null, 'thinking may go from the start');
  assert.match(
    check([...history.slice(0, 1), assistant(later, said('b')), history[2]]),
    /different conversation/,
  );
});

const ask = { role: 'user', content: 'a' };
const calling = (args = '{}', id = 'c1') => ({
  role: 'assistant',
  content: null,
  tool_calls: [{ id, type: 'function', function: { name: 'read_file', arguments: args } }],
});
const answer = (id = 'c1') => ({ role: 'tool', tool_call_id: id, content: '' });
const chatTools = [{ type: 'function', function: { name: 'read_file', parameters: { type: 'object' } } }];
const noted = { role: 'assistant', content: 'Noted.' };
const system = { role: 'system', content: 's' };
const openai = [
  ['a plain message', [{ role: 'system', content: 's' }, ask], null],
  ['a call and its result', [ask, calling(), answer()], null],
  ['empty arguments', [ask, calling(''), answer()], /invalid tool call arguments/],
  ['arguments that are no object', [ask, calling('[]'), answer()], /invalid tool call arguments/],
  ['a call without a result', [ask, calling(), ask], /did not have response/],
  ['a call at the end', [ask, calling()], /did not have response/],
  ['an orphan result', [ask, answer()], /unexpected tool_call_id/],
  ['two users in a row', [ask, ask], /alternate/],
  ['null content without calls', [ask, { role: 'assistant', content: null }, ask], /without content/],
  ['content left out', [{ role: 'user' }], /content is missing/],
  ['a system message in between', [ask, { role: 'system', content: 's' }, ask], /beginning/],
  ['an id twice', [ask, calling(), answer(), calling(), answer()], /unique/],
  ['a field that is not known', [{ ...ask, name: 'x' }], /Extra inputs/],
  ['two system messages', [system, system, ask], /beginning/],
  ['a blank system message', [{ ...system, content: ' ' }, ask], /system content/],
  ['nothing but a system message', [system], /must have a user/],
  ['an assistant first', [system, noted, ask], /start with a user/],
  ['two answers in a row', [ask, noted, noted, ask], /alternate/],
  ['an answer at the end', [ask, noted], /at the end/],
  ['a blank answer beside calls', [ask, { ...calling(), content: ' ' }, answer()], /blank/],
  ['a list of calls that is empty', [ask, { ...noted, tool_calls: [] }, ask], /too short/],
  ['a call without its type', [ask, without(calling(), 'type'), answer()], /type must be/],
  ['a malformed id', [ask, calling('{}', 'a:b'), answer('a:b')], /malformed/],
  ['a blank text', [{ ...ask, content: ' ' }], /must not be empty/],
  ['an unknown role', [{ role: 'developer', content: 'x' }, ask], /unknown role/],
];

function without(message, field) {
  const tool_calls = message.tool_calls.map(({ [field]: _, ...call }) => call);
  return { ...message, tool_calls };
}

test('the strict check refuses what strict servers of chat completions refuse', () => {
  for (const [name, messages, expected] of openai) {
    const fault = checkOpenai({ model: 'm', tools: chatTools, messages });
    if (expected) assert.match(fault?.message ?? 'accepted', expected, name);
    else assert.equal(fault, null, name);
  }
  assert.match(
    checkOpenai({ model: 'm', messages: [ask], stream_options: {} }, { refuse: ['stream_options'] }).message,
    /Unrecognized request argument/,
  );
  assert.match(
    checkOpenai(
      { model: 'm', tools: chatTools, messages: [ask, calling(), answer()] },
      { wantReasoning: true },
    ).message,
    /reasoning_content/,
  );
  const plain = { model: 'm', messages: [ask] };
  for (const [more, expected] of [
    [{ temperature: 1 }, /Unrecognized/],
    [{ max_tokens: 1, max_completion_tokens: 1 }, /same time/],
    [{ max_tokens: 0 }, /positive/],
    [{ stream_options: {} }, /only allowed/],
    [{ tools: [] }, /too short/],
    [{ tools: [...chatTools, ...chatTools] }, /unique/],
    [{ tools: [{ function: chatTools[0].function }] }, /type must be/],
    [{ model: '' }, /model/],
    [{ messages: [ask, calling(), answer()] }, /tools is required/],
    [{ messages: [{ ...ask, content: 'a\0' }] }, /NUL/],
    [{ stream: true, stream_options: {}, max_tokens: 5, reasoning_effort: 'low', tools: chatTools }, null],
  ]) {
    const fault = checkOpenai({ ...plain, ...more })?.message ?? 'accepted';
    assert.match(fault, expected ?? /^accepted$/, JSON.stringify(more));
  }
});

test('the strictest chat templates take no user after a tool, and ids of nine letters and digits', () => {
  const check = (...messages) =>
    checkOpenai({ model: 'm', tools: chatTools, messages }, { template: true })?.message ?? 'accepted';
  const nine = 'abcdef123';
  assert.equal(check(ask, calling('{}', nine), answer(nine), noted, ask), 'accepted');
  assert.equal(check(ask, calling('{}', nine), answer(nine)), 'accepted');
  assert.match(check(ask, calling('{}', nine), answer(nine), ask), /right after a tool/);
  assert.match(check(ask, calling('{}', 'c1'), answer('c1')), /length of 9/);
  assert.match(check(ask, calling('{}', 'abcdef_23'), answer('abcdef_23')), /length of 9/);
});

test('a prefix that changed by one byte is seen, a moved mark is not', () => {
  const raw = (messages) => JSON.stringify(body(messages));
  const a = raw([user({ ...said('a "quoted" ] }'), ...mark })]);
  const b = raw([user(said('a "quoted" ] }')), assistant(said('b')), user({ ...said('c'), ...mark })]);
  assertPrefix(a, b);
  assert.equal(blocks(b).length, 4);
  assert.throws(() => assertPrefix(a, raw([user(said('a "quoted" ] } '))])));
  assert.throws(() => assertPrefix(b, a));
  const chat = (...messages) => JSON.stringify({ messages });
  const twoLines = { role: 'user', content: 'a\n\nb' };
  assertPrefix(chat(ask), chat(twoLines));
  assert.throws(() => assertPrefix(chat(ask, { role: 'assistant', content: 'x' }, ask), chat(twoLines)));
});

const post = (provider, path, json, headers) => postRaw(provider, path, JSON.stringify(json), headers);

function postRaw(provider, path, bytes, headers = {}) {
  return new Promise((done, fail) => {
    const request = http.request(provider.url + path, {
      method: 'POST',
      agent: false,
      headers: {
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(bytes),
        'x-api-key': 'test-key',
        'anthropic-version': '2023-06-01',
        authorization: 'Bearer test-key',
        ...headers,
      },
    });
    request.on('error', (fault) => (request.answered ? done({ fault }) : fail(fault)));
    request.on('response', (response) => {
      request.answered = true;
      const pieces = [];
      response.on('data', (piece) => pieces.push(piece));
      const end = (fault) =>
        done({ status: response.statusCode, text: Buffer.concat(pieces).toString(), fault });
      response.on('error', end);
      response.on('end', () => end(response.complete ? null : new Error('cut')));
    });
    request.end(bytes);
  });
}

test('the provider answers by its script, to the byte, and keeps every body', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const request = body([user(said('hé'))]);
  const whole = encode(events('anthropic', [text('a', 'é👍')], {}));
  provider.answers = [
    say([text('a', 'é👍')], { split: 1 }),
    say('x', { cutAt: 100, then: 'reset' }),
    refuse(529, { error: { message: 'busy' } }),
    say('x', { eol: '\r\n', last: false }),
  ];
  const first = await post(provider, '/v1/messages', request);
  assert.equal(first.status, 200);
  assert.ok(first.text.includes('é👍'));
  assert.equal(Math.abs(first.text.length - whole.toString().length) < 8, true);
  assert.ok((await post(provider, '/v1/messages', request)).fault, 'the reset is seen');
  assert.equal((await post(provider, '/v1/messages', request)).status, 529);
  const crlf = await post(provider, '/v1/chat/completions', { model: 'm', messages: [ask] });
  assert.ok(crlf.text.endsWith('[DONE]\r\n') && !/[^\r]\n/.test(crlf.text));
  assert.equal(provider.asked.length, 4);
  assert.equal(provider.asked[0].text, JSON.stringify(request));
  assert.equal((await post(provider, '/v1/messages', request, { 'x-api-key': 'no' })).status, 401);
  const refused = await post(provider, '/v1/messages', body([user(said(''))]));
  assert.equal(refused.status, 400);
  assert.match(refused.text, /non-empty/);
  assert.equal(provider.fault, undefined);
});

test('signed thinking is accepted where it was made, and only there', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const thought = thinking('hm');
  provider.answers = [say([thought, call('read_file', {}, 'toolu_x')])];
  const request = body([user(said('a'))]);
  await post(provider, '/v1/messages', request);
  const history = [
    assistant({ type: 'thinking', thinking: 'hm', signature: thought.signature }, use('toolu_x')),
    user(result('toolu_x')),
  ];
  assert.equal((await post(provider, '/v1/messages', body([...request.messages, ...history]))).status, 200);
  assert.equal((await post(provider, '/v1/messages', body([user(said('b')), ...history]))).status, 400);
});

test('a mute provider says nothing until the other side goes', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  provider.always = mute();
  const pending = post(provider, '/v1/messages', body([user(said('a'))])).catch(() => 'gone');
  const exchange = await provider.next();
  assert.equal(exchange.gone, false);
  await provider.stop();
  assert.equal(await pending, 'gone');
});
