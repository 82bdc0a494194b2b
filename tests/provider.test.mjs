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
    checkAnthropic(body([user(said('a')), assistant(use('t1')), user(result('t1'))], { tools: [] }))
      .message,
    /tools: Field required/,
  );
  assert.match(
    checkAnthropic(
      body(hi, { model: 'claude-sonnet-5-5', thinking: { type: 'enabled', budget_tokens: 2000 } }),
    ).message,
    /not supported/,
  );
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
  assert.equal(
    check([user({ ...said('a'), ...mark }), ...history.slice(1)]),
    null,
    'a mark does not count',
  );
  assert.match(check(history, { system: [said('other')] }), /different conversation/);
  assert.match(check(history, { tools: [] }), /different conversation/);
  assert.match(check([user(said('A')), ...history.slice(1)]), /different conversation/);
  assert.match(
    check([history[0], assistant({ ...thought, ...mark }, said('b')), history[2]]),
    /Extra inputs|cache_control/,
  );
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
];

test('the strict check refuses what strict servers of chat completions refuse', () => {
  for (const [name, messages, expected] of openai) {
    const fault = checkOpenai({ model: 'm', messages });
    if (expected) assert.match(fault?.message ?? 'accepted', expected, name);
    else assert.equal(fault, null, name);
  }
  assert.match(
    checkOpenai({ model: 'm', messages: [ask], stream_options: {} }, { refuse: ['stream_options'] })
      .message,
    /Unrecognized request argument/,
  );
  assert.match(
    checkOpenai({ model: 'm', messages: [ask, calling(), answer()] }, { wantReasoning: true }).message,
    /reasoning_content/,
  );
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

function post(provider, path, json, headers = {}) {
  return new Promise((done, fail) => {
    const bytes = JSON.stringify(json);
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
