// A model that says anything: random answers, right and wrong, for random conversations.

import { setTimeout as sleep } from 'node:timers/promises';
import { chance } from './chance.mjs';
import { call, freshId, refuse, say, text, thinking } from './provider.mjs';
import { takes, thinks } from './strict/families.mjs';

/** Files of the working directory, made by the test. */
export const FILES = {
  'note.txt': 'the answer is 42\n',
  empty: '',
  'wide.txt': '字'.repeat(30_000),
  'lines.txt': 'line of text é\n'.repeat(3000),
  nasty: Buffer.from('a\0b\x1b[31mred\x1b[0m\x1b]0;t\x07\xff\xfe é\n', 'latin1'),
  'blank.txt': ' \n\n ',
};

const WORDS = [
  ...'the a fox reads é 字 👍 "quoted" \\back {"json":1} </think> `code` \u2028 \ttab naïve'.split(' '),
  '\n',
  '\n\n',
  '```js\nlet x;\n```',
];

/** Some words; the first is one of its kind, so that a text can be found again. */
export function words(next, count = next.between(1, 25)) {
  return `${freshId('w')} ${Array.from({ length: count }, () => next.one(WORDS)).join(' ')}`;
}

function pieces(whole, next) {
  const size = next.one([3, 20, 200, 4000]);
  return whole.match(new RegExp(`[\\s\\S]{1,${size}}`, 'gu')) ?? [''];
}

const someText = (next) =>
  text(...pieces(next.in(3) ? `${words(next)} ${'long é '.repeat(3000)}` : words(next), next));

const ARGUMENTS = [
  [30, (next) => ['read_file', { path: next.one(Object.keys(FILES)) }]],
  [15, () => ['list_files', { path: '.' }]],
  [10, (next) => ['search', { query: next.one(['answer', 'text', 'nothing at all']) }]],
  [10, () => ['system_info', '']],
  [5, () => ['system_info', ['{', '}']]],
  [6, () => ['read_file', { path: '../../etc/passwd' }]],
  [6, (next) => ['read_file', { path: `${'no'.repeat(next.between(1, 4000))}` }]],
  [5, (next) => [next.one(['fs.read_file', 'no such tool!', 'é', ' ', 'n'.repeat(90)]), { x: 1 }]],
  [10, (next) => [next.one(['read_file', 'search']), next.one(BAD)]],
];

const BAD = [
  '{"path":',
  '[1]',
  'null',
  '"x"',
  '{"path":"a\\u0000b"}',
  '{"path":"\\ud800"}',
  `${'{"a":'.repeat(200)}1${'}'.repeat(200)}`,
  '{"path":"a"} trailing',
  ' ',
  '{"path":1e999}',
  '{"path":"a","path":"b"}',
];

function someCall(next) {
  const [name, args] = next.weighed(ARGUMENTS)(next);
  const id = next.weighed([
    [60, freshId('toolu')],
    [8, freshId('c').padStart(9, 'x').slice(-9).replaceAll('_', 'x')],
    [12, 'call_0'],
    [6, ''],
    [5, 'terminal:0'],
    [4, `functions.${name}:1`],
    [5, 'x'.repeat(70)],
  ]);
  return call(name, args, id);
}

function someThinking(next, wire) {
  const kinds = [[60, () => thinking(...pieces(words(next), next))]];
  if (wire === 'anthropic') {
    kinds.push([15, () => ({ thinking: [], signature: freshId('sig') })]);
    kinds.push([15, () => ({ redacted: freshId('redacted') })]);
    // What servers that merely speak the API give.
    kinds.push([10, () => ({ thinking: pieces(words(next), next) })]);
  }
  return next.weighed(kinds)();
}

function callsOf(next, deep) {
  if (deep) return 0;
  return next.weighed([
    [45, 0],
    [35, 1],
    [15, next.between(2, 4)],
    [5, 25],
  ]);
}

/** The blocks of an answer, as a real model might order them. */
function parts(next, exchange, deep) {
  const { wire, json } = exchange;
  const mayThink = wire === 'openai' || takes(json.model) === null || thinks(json);
  const out = [];
  if (mayThink && next.in(50)) out.push(someThinking(next, wire));
  if (mayThink && next.in(10)) out.push(someThinking(next, wire));
  const calls = callsOf(next, deep);
  if (!calls || next.in(50)) out.push(next.in(6) ? text(next.one(['', ' ', '\n'])) : someText(next));
  for (let n = 0; n < calls; n += 1) {
    out.push(someCall(next));
    // Between calls only those think or speak who need not begin with it.
    if (json.thinking?.type !== 'enabled' && next.in(8))
      out.push(mayThink && next.in(50) ? someThinking(next, wire) : someText(next));
  }
  return next.in(2) ? [] : out;
}

const fault = (wire) =>
  wire === 'anthropic'
    ? {
        event: 'error',
        data: '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
      }
    : { data: '{"error":{"message":"boom","code":500}}' };

/** How a stream goes wrong, or does not. */
function manner(next, exchange) {
  const pace = next.in(30) ? { split: next.between(30, 300), pauseMs: next.between(1, 3) } : {};
  const more = next.weighed([
    [82, {}],
    [6, { cutAt: next.below2(1500), then: next.one(['close', 'reset']) }],
    [3, { change: (list) => [...list.slice(0, next(list.length)), fault(exchange.wire)] }],
    [4, { stop: 'max' }],
    [3, { stop: 'refused' }],
    [1, { stop: 'whatever' }],
    [1, { stop: 'model_context_window_exceeded' }],
    [1, { eol: '\r\n', last: false }],
  ]);
  return { ...pace, ...more };
}

const BOUND =
  'messages.1.content.0: `thinking` block: The block is bound to a different conversation than this one';

function error(next, exchange) {
  const of = (status, type, message, headers) =>
    refuse(status, { type: 'error', error: { type, message } }, headers);
  const all = [
    of(429, 'rate_limit_error', 'slow down', { 'retry-after-ms': '1' }),
    of(500, 'api_error', 'Internal server error'),
    of(529, 'overloaded_error', 'Overloaded'),
    of(402, 'billing_error', 'no credit'),
    of(404, 'not_found_error', 'model not found'),
    of(400, 'invalid_request_error', 'prompt is too long: 210000 tokens > 200000 maximum'),
    refuse(502, '<html>Bad gateway</html>'),
  ];
  if (/"type":"(redacted_)?thinking"/.test(exchange.text))
    all.push(of(400, 'invalid_request_error', BOUND), of(400, 'invalid_request_error', BOUND));
  return next.one(all);
}

/** Steps since the owner's last text, so that a turn ends at last. */
function depth({ json }) {
  const plain = (message) =>
    message.role === 'user' &&
    (typeof message.content === 'string' || message.content.some((block) => block.type === 'text'));
  return json.messages.length - json.messages.findLastIndex(plain);
}

/** The least time between a request and what comes of it, so that rows and requests have one order. */
const APART_MS = 3;

/** Whether a summary is asked for: that is the last thing which is said. */
export function asksForSummary({ json }) {
  const { content } = json.messages.at(-1);
  const last = typeof content === 'string' ? content : content.at(-1).text;
  return /Write a summary of this whole conversation[^\n]*$/.test(last ?? '');
}

/** Summaries, of which some are of no use. */
function summary(next, exchange) {
  const good = () => say([thinking('hm'), text(`${freshId('sum')} ${words(next, 5)}`)]);
  return next.weighed([
    [70, good],
    [8, () => say([call('system_info')])],
    [6, () => say([text(' ')])],
    [6, () => say(`${'long '.repeat(60_000)}`)],
    [5, () => say('I will not', { stop: 'refused' })],
    [5, () => say('half a sum', { cutAt: 400, then: 'reset' })],
  ])()(exchange);
}

/** Answers `exchange` in a way that depends on `seed` and nothing else. */
export async function babble(exchange, seed) {
  const next = chance(seed);
  next.below2 = (n) => (next.in(30) ? next(200) : next(n));
  await sleep(APART_MS);
  if (asksForSummary(exchange) && next.in(90)) return summary(next, exchange);
  if (next.in(5)) return error(next, exchange)(exchange);
  if (next.in(2)) return exchange.reset();
  const spoken = parts(next, exchange, depth(exchange) > 9);
  return say(spoken, manner(next, exchange))(exchange);
}

/** A plain answer. */
export async function calmly(exchange) {
  await sleep(APART_MS);
  return say(`${freshId('w')} fine`)(exchange);
}
