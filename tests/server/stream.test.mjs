// The provider's stream as it really comes: split anywhere, cut, reset, silent, with errors inside; and
// what is retried.

import assert from 'node:assert/strict';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Siskin, textOf } from '../fixture.mjs';
import { call, encode, events, mute, Provider, refuse, say, stream, text, thinking } from '../provider.mjs';

const WIRES = { anthropic: 'a/scripted', openai: 'o/scripted' };
const PATIENCE = 'first_event_s = 2\nidle_s = 1';

async function setUp(t, options = {}) {
  const provider = options.provider ?? (await Provider.start());
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider, budget: { attempts: 2 }, ...options });
  return { provider, siskin };
}

function both(name, body, options) {
  for (const wire of Object.keys(WIRES)) {
    test(`${wire}: ${name}`, async (t) => {
      const { provider, siskin } = await setUp(t, options);
      const tab = await siskin.newTab({ model: WIRES[wire] });
      await body({ wire, provider, siskin, tab, t });
      assert.equal(provider.fault, undefined);
      assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
    });
  }
}

/** Bytes of the first events of an answer: all up to and with the one that `fits`. */
function upTo(wire, parts, fits) {
  const all = events(wire, parts);
  return encode(all.slice(0, all.findIndex(({ data }) => fits(data)) + 1));
}

const rowsOf = async (siskin, tab) =>
  (await siskin.log(tab.id)).map((row) => [row.role, row.type, row.data]);

const said = (rows) =>
  rows
    .filter((row) => row.role === 'assistant')
    .map((row) => [row.type, row.data.text ?? row.data.arguments]);

both('a stream split anywhere gives the same rows', async ({ wire, provider, siskin, tab }) => {
  const parts = () => [
    { thinking: ['hm é'], signature: wire === 'anthropic' ? `s${Math.random()}` : undefined },
    text('é👍', 'ab'),
    call('system_info', ['{', '}']),
  ];
  const last = [text('end 👍')];
  provider.always = (exchange) =>
    say(
      exchange.json.messages.at(-1).role === 'tool' ||
        (Array.isArray(exchange.json.messages.at(-1).content) &&
          exchange.json.messages.at(-1).content[0].type === 'tool_result')
        ? last
        : parts(),
    )(exchange);
  await siskin.turn(tab.id, 'whole');
  const expected = said(await siskin.log(tab.id));
  assert.deepEqual(expected, [
    ['thinking', 'hm é'],
    ['text', 'é👍ab'],
    ['tool_call', '{}'],
    ['text', 'end 👍'],
  ]);
  const size = encode(events(wire, parts())).length;
  const normal = provider.always;
  const variants = [
    { split: 1 },
    { split: 2 },
    { split: 3 },
    { eol: '\r\n', split: 1 },
    { eol: '\r', split: 1 },
    { space: '' },
    { last: false },
    { eol: '\r\n', last: false },
    { before: ': OPENROUTER PROCESSING\n\n'.repeat(3) },
    { before: 'data:\n\n: ping\n\ndata: : x\n\n' },
    { before: '\ufeff' },
    { before: 'id: 7\nretry: 10\n\n' },
  ];
  for (let at = 1; at < size; at += 37) variants.push({ split: [at], pauseMs: 1 });
  for (const variant of variants) {
    provider.answers = [say(parts(), { ...variant, close: variant.split === 1 })];
    const one = await siskin.newTab({ model: WIRES[wire] });
    const turn = await siskin.turn(one.id, 'again');
    assert.equal(turn.stopReason, 'end', JSON.stringify(variant));
    assert.deepEqual(said(await siskin.log(one.id)), expected, JSON.stringify(variant));
  }
  assert.equal(provider.always, normal);
});

const CUTS = [
  [
    'after three deltas',
    [text('one ', 'two ', 'three ', 'four')],
    (d) => d.includes('three'),
    'one two three ',
  ],
  ['after the text, before the end', [text('one ', 'two')], (d) => d.includes('two'), 'one two'],
  [
    'inside a call',
    [text('look'), call('read_file', ['{"path":', '"a"}'])],
    (d) => /"\{\\"path/.test(d),
    'look',
  ],
  [
    'after a whole call',
    [text('look'), call('list_files', ['{"path":"."}'])],
    (d) => /\\"\.\\"/.test(d),
    'look',
  ],
  ['inside thinking', [thinking('hm ', 'well ', 'so'), text('x')], (d) => d.includes('well'), ''],
];

for (const then of ['close', 'end', 'reset', 'silent']) {
  both(
    `a stream that ends by ${then} in the middle is cut, kept, and gone on from`,
    async ({ wire, provider, siskin, tab }) => {
      let turns = 0;
      for (const [name, parts, fits, expected] of CUTS) {
        const bytes = upTo(wire, parts, fits);
        const asked = provider.asked.length;
        provider.answers = [
          async (exchange) => {
            for (const { signature } of parts)
              if (signature) provider.bindings.bind(signature, exchange.json);
            await stream(exchange, bytes, { cutAt: bytes.length, then, close: then === 'end' });
          },
        ];
        const turn = await siskin.turn(tab.id, name);
        turns += 1;
        assert.equal(turn.ordinal, turns);
        assert.equal(turn.stopReason, 'cut', name);
        assert.equal(
          provider.asked.length,
          asked + 1,
          `${name}: nothing is asked again once something was shown`,
        );
        const rows = (await siskin.log(tab.id)).filter((row) => row.turnId === turn.turnId);
        assert.equal(textOf(rows), expected, name);
        assert.equal(rows.at(-1).type, 'error', name);
        assert.ok(rows.at(-1).data.message.length > 10);
        const results = rows.filter((row) => row.type === 'tool_result');
        assert.ok(
          results.every((row) => row.data.isError),
          'no tool of a cut stream runs',
        );
      }
      assert.equal(
        (await siskin.turn(tab.id, 'go on')).stopReason,
        'end',
        'and the history is still accepted',
      );
    },
    { providerConfig: PATIENCE },
  );
}

both('half an event at the end is not taken for an end', async ({ wire, provider, siskin, tab }) => {
  const whole = encode(events(wire, [text('one ', 'two')]));
  const end = whole.lastIndexOf(wire === 'anthropic' ? 'message_stop"' : '"finish_reason":"stop"');
  provider.answers = [(exchange) => stream(exchange, whole, { cutAt: end, then: 'close' })];
  assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'cut');
});

const INSIDE = {
  openai: [
    'data: {"error":{"message":"boom","code":500}}\n\n',
    'data: {"object":"error","message":"boom","code":400}\n\n',
    'error: {"message":"boom"}\n\n',
    'event: error\ndata: {"error":"boom"}\n\n',
    'data: {"error":{"code":"502","message":"boom"},' +
      '"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}\n\n',
  ],
  anthropic: [
    'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"boom"}}\n\n',
  ],
};

both(
  'an error inside a 200 stream fails the turn, shows why, and keeps the text',
  async ({ wire, provider, siskin, tab }) => {
    const bytes = upTo(wire, [text('one ', 'two ', 'three')], (data) => data.includes('two'));
    for (const inside of INSIDE[wire]) {
      provider.answers = [(exchange) => stream(exchange, Buffer.concat([bytes, Buffer.from(inside)]))];
      const turn = await siskin.turn(tab.id, 'go');
      assert.ok(['cut', 'error'].includes(turn.stopReason), `${inside}: ${turn.stopReason}`);
      const rows = (await siskin.log(tab.id)).filter((row) => row.turnId === turn.turnId);
      assert.equal(textOf(rows), 'one two ', inside);
      assert.equal(rows.at(-1).type, 'error', inside);
      assert.match(rows.at(-1).data.message, /boom/, inside);
    }
    assert.equal((await siskin.turn(tab.id, 'go on')).stopReason, 'end');
  },
);

const PLAIN = [
  ['a bad key', 401, { error: { type: 'authentication_error', message: 'invalid x-api-key' } }, /key/],
  ['no money', 402, { error: { message: 'Insufficient credits' } }, /credits/],
  [
    'no credit',
    400,
    { type: 'error', error: { type: 'invalid_request_error', message: 'Your credit balance is too low' } },
    /credit balance/,
  ],
  [
    'a quota',
    429,
    { error: { message: 'You exceeded your current quota', code: 'insufficient_quota' } },
    /quota/,
  ],
  [
    'a spend limit',
    429,
    { error: { message: 'limit', details: { error_code: 'enforced_spend_limit_reached' } } },
    /limit/,
  ],
  [
    'a model that is gone',
    404,
    { error: { type: 'not_found_error', message: 'model: scripted' } },
    /model/,
  ],
  ['a validation error', 422, { detail: [{ msg: 'field required' }] }, /field required/],
  ['a page of a proxy', 403, `<html><body>${'字'.repeat(5000)}</body></html>`, /403/],
  ['nothing at all', 400, '', /400/],
];

both('what cannot get better is asked once and said plainly', async ({ provider, siskin, tab }) => {
  for (const [name, status, body, message] of PLAIN) {
    const asked = provider.asked.length;
    provider.answers = [refuse(status, body)];
    const turn = await siskin.turn(tab.id, name);
    assert.equal(turn.stopReason, 'error', name);
    assert.equal(provider.asked.length, asked + 1, `${name} was asked again`);
    const row = (await siskin.log(tab.id)).at(-1);
    assert.equal(row.type, 'error');
    assert.match(row.data.message, message, name);
    assert.ok(row.bytes <= 4096);
    assert.doesNotMatch(row.data.message, /test-key|\ufffd/);
    assert.equal((await siskin.tab(tab.id)).status, 'error');
  }
  assert.equal((await siskin.turn(tab.id, 'better')).stopReason, 'end');
  assert.equal((await siskin.tab(tab.id)).status, 'idle');
});

both('what may get better is tried again, and each try is shown', async ({ provider, siskin, tab }) => {
  const peer = await siskin.peer();
  await peer.open(tab.id);
  const busy = refuse(529, { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } });
  provider.answers = [busy, say('at last')];
  await siskin.send(tab.id, 'go');
  await peer.turns();
  assert.ok(peer.statuses.includes('retrying'));
  const shown = peer.frames.find((frame) => frame.type === 'status' && frame.status === 'retrying');
  assert.ok(shown.detail.attempt >= 1 && shown.detail.delayMs > 0);
  assert.match(shown.detail.message, /[Oo]verloaded|529/);
  assert.deepEqual(
    (await rowsOf(siskin, tab)).map(([role, type]) => `${role} ${type}`),
    ['user text', 'assistant text'],
  );
  provider.answers = [busy, busy, say('too late')];
  const turn = await siskin.turn(tab.id, 'once more');
  assert.equal(turn.stopReason, 'error', 'two attempts is the budget here');
  assert.equal(provider.asked.length, 4);
});

both(
  'retry-after is honoured, and beyond a minute the owner is told',
  async ({ provider, siskin, tab }) => {
    provider.answers = [refuse(429, { error: { message: 'slow down' } }, { 'retry-after': '2' })];
    assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'end');
    const [first, second] = provider.asked;
    assert.ok(second.at - first.at >= 1900, `${second.at - first.at} ms`);
    provider.answers = [refuse(429, { error: { message: 'slow down' } }, { 'retry-after': '600' })];
    assert.equal((await siskin.turn(tab.id, 'again')).stopReason, 'error');
    assert.equal(provider.asked.length, 3);
    assert.match((await siskin.log(tab.id)).at(-1).data.message, /600|10 min|minutes/);
  },
);

both(
  'all causes share one counter of attempts',
  async ({ provider, siskin, tab }) => {
    // The list of models would be one connection more.
    await siskin.get('/api/models');
    let connections = 0;
    provider.onConnect = (socket) => {
      connections += 1;
      if (connections % 2 === 1) {
        socket.resetAndDestroy();
        return false;
      }
      return true;
    };
    provider.always = refuse(500, { error: { message: 'internal' } });
    const turn = await siskin.turn(tab.id, 'go');
    assert.equal(turn.stopReason, 'error');
    assert.equal(connections, 3);
  },
  { budget: { attempts: 3 } },
);

both(
  'silence before and between events has an end, comments or not',
  async ({ provider, siskin, tab }) => {
    const cases = [
      ['mute', mute(), 'error', 2],
      [
        'head, then nothing',
        async (exchange) => {
          await exchange.head();
          await exchange.silent();
        },
        'error',
        2,
      ],
      [
        'only comments',
        async (exchange) => {
          await exchange.head();
          while (!exchange.gone) {
            await exchange.body(': ping\n\n');
            await sleep(100);
          }
        },
        'error',
        2,
      ],
    ];
    for (const [name, answer, reason, attempts] of cases) {
      const asked = provider.asked.length;
      provider.answers = Array.from({ length: attempts }, () => answer);
      const began = Date.now();
      const turn = await siskin.turn(tab.id, name, 30_000);
      assert.equal(turn.stopReason, reason, name);
      assert.ok(Date.now() - began < 12_000, name);
      assert.ok(provider.asked.length - asked <= attempts);
      provider.answers = [];
    }
  },
  { providerConfig: PATIENCE },
);

both(
  'a slow stream that goes on is not cut',
  async ({ provider, siskin, tab }) => {
    provider.answers = [
      say([text(...Array.from({ length: 20 }, (_, n) => `${n} `))], { split: 300, pauseMs: 300 }),
    ];
    const began = Date.now();
    const turn = await siskin.turn(tab.id, 'go', 60_000);
    assert.ok(Date.now() - began > 3000, 'three times the idle limit');
    assert.equal(turn.stopReason, 'end');
  },
  { providerConfig: PATIENCE },
);

test('comments keep a stream alive between events, but not for ever', async (t) => {
  const { provider, siskin } = await setUp(t, { providerConfig: 'first_event_s = 3\nidle_s = 1' });
  const tab = await siskin.newTab({ model: 'o/scripted' });
  const [head, ...rest] = [
    upTo('openai', [text('one ', 'two')], (data) => data.includes('one')),
    ...events('openai', [text('one ', 'two')]).slice(2),
  ];
  provider.answers = [
    async (exchange) => {
      await exchange.head();
      await exchange.body(head);
      for (let n = 0; n < 10; n += 1) {
        await exchange.body(': keep-alive\n\n');
        await sleep(200);
      }
      await exchange.body(encode(rest));
      exchange.end();
    },
  ];
  assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'end', 'two seconds of comments are endured');
  provider.answers = [
    async (exchange) => {
      await exchange.head();
      await exchange.body(head);
      while (!exchange.gone) {
        await exchange.body(': keep-alive\n\n');
        await sleep(200);
      }
    },
  ];
  const began = Date.now();
  assert.equal((await siskin.turn(tab.id, 'again')).stopReason, 'cut');
  assert.ok(Date.now() - began < 6000);
});

test('a wrong URL and a provider that is down are named with their mend', async (t) => {
  for (const [wire, model] of Object.entries(WIRES)) {
    const provider = await Provider.start();
    const { siskin } = await setUp(t, { provider, baseUrl: `${provider.url}/wrong` });
    const tab = await siskin.newTab({ model });
    assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'error');
    const wrong = (await siskin.log(tab.id)).at(-1).data.message;
    assert.match(wrong, /404[\s\S]*(base_url|URL)|base_url[\s\S]*404/, wrong);
    await provider.stop();
    assert.equal((await siskin.turn(tab.id, 'go', 30_000)).stopReason, 'error');
    const down = (await siskin.log(tab.id)).at(-1).data.message;
    assert.match(down, new RegExp(`127\\.0\\.0\\.1:${provider.port}`), `${wire}: ${down}`);
    assert.match(down, /refused|running|reach/);
    assert.doesNotMatch(down, /\n/);
  }
});

test('a key that is wrong says which file to look at, and never the key', async (t) => {
  const { provider, siskin } = await setUp(t, { key: 'sk-wrong-key-123' });
  for (const model of Object.values(WIRES)) {
    const tab = await siskin.newTab({ model });
    assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'error');
    const { message, status } = (await siskin.log(tab.id)).at(-1).data;
    assert.equal(status, 401);
    assert.match(message, /key/);
    assert.match(message, /api_key_file|\/key|_API_KEY/, message);
    assert.doesNotMatch(message, /sk-wrong-key-123/);
  }
  assert.equal(provider.asked.length, 2);
  assert.doesNotMatch(siskin.stderr, /sk-wrong-key-123/);
});

both('an answer that is no stream is understood or named', async ({ provider, siskin, tab }) => {
  provider.answers = [
    refuse(200, { error: { message: 'boom in a body', type: 'server_error' } }),
    refuse(200, { error: { message: 'boom in a body', type: 'server_error' } }),
  ];
  const first = await siskin.turn(tab.id, 'go');
  assert.ok(['error', 'cut'].includes(first.stopReason));
  assert.match((await siskin.log(tab.id)).at(-1).data.message, /boom in a body/);
  provider.answers = Array.from({ length: 2 }, () => refuse(200, '<html><body>login please</body></html>'));
  const second = await siskin.turn(tab.id, 'go');
  assert.ok(['error', 'cut'].includes(second.stopReason));
  provider.answers = Array.from({ length: 2 }, () => refuse(302, '', { location: 'http://127.0.0.1:1/' }));
  assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'error');
});

both('an answer without any content is said to be empty', async ({ provider, siskin, tab }) => {
  provider.answers = [say([])];
  await siskin.turn(tab.id, 'go');
  const rows = await siskin.log(tab.id);
  assert.ok(
    rows.filter((row) => row.type === 'text' && row.role === 'assistant').length === 0,
    'no empty text row',
  );
  assert.ok(rows.length >= 2, 'a row says so');
  assert.equal((await siskin.turn(tab.id, 'go on')).stopReason, 'end');
});

both('one event over its budget ends the turn with a reason', async ({ provider, siskin, tab }) => {
  provider.answers = [say([text('a'.repeat(400_000))])];
  const turn = await siskin.turn(tab.id, 'go');
  assert.ok(['error', 'cut'].includes(turn.stopReason));
  assert.match((await siskin.log(tab.id)).at(-1).data.message, /event_bytes|256 KiB|262144/);
  assert.ok(siskin.rss() < 16 * 1024 * 1024);
  assert.equal((await siskin.turn(tab.id, 'go on')).stopReason, 'end');
});

// A packed answer was read as if it were text, found empty, asked for again, and told as a broken connection.
both('an answer that is packed is named as that, and asked for once', async ({ provider, siskin, tab }) => {
  provider.always = async (exchange) => {
    await exchange.head({ headers: { 'content-encoding': 'gzip' }, close: true });
    await exchange.body(Buffer.from('1f8b0800000000000003', 'hex'));
    exchange.end();
  };
  assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'error');
  assert.match((await siskin.log(tab.id)).at(-1).data.message, /packs its answer \("gzip"\)/);
  assert.equal(provider.asked.length, 1);
});
