// What a provider refuses, and when it is asked again: limits, waits, quotas, fields, and lines that fail.

import assert from 'node:assert/strict';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Siskin, textOf } from '../fixture.mjs';
import { call, encode, events, Provider, refuse, say, stream, text } from '../provider.mjs';

const WIRES = { anthropic: 'a/scripted', openai: 'o/scripted' };

async function setUp(t, options = {}) {
  const provider = await Provider.start(options.provider);
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { budget: { attempts: 2 }, ...options, provider });
  return { provider, siskin };
}

function both(name, body, options = {}) {
  for (const [wire, model] of Object.entries(WIRES)) {
    test(`${wire}: ${name}`, async (t) => {
      const { provider, siskin } = await setUp(t, options);
      const tab = await siskin.newTab({ model });
      await body({ t, wire, model, provider, siskin, tab });
      assert.equal(provider.fault, undefined);
      assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
    });
  }
}

const message = async (siskin, tab) => (await siskin.log(tab.id)).at(-1).data.message;

/** One turn: how often it was asked for, the reason of its end, and the ms between the first two requests. */
async function turnOf(siskin, provider, tab) {
  const before = provider.asked.length;
  const turn = await siskin.turn(tab.id, 'go', 30_000);
  const asked = provider.asked.slice(before);
  return { times: asked.length, stop: turn.stopReason, wait: asked[1] ? asked[1].at - asked[0].at : 0 };
}

const at = (ms) => new Date(ms).toUTCString();
const SLOW = { type: 'error', error: { type: 'rate_limit_error', message: 'slow down' } };

both('a wait that is asked for is kept, however it is written', async ({ provider, siskin, tab }) => {
  // Headers, the least and the most ms that are waited.
  const waits = [
    [{ 'retry-after': '1' }, 1000, 1600],
    [{ 'retry-after': '1.5' }, 1500, 2100],
    [{ 'retry-after': '0' }, 0, 900],
    [{ 'retry-after': '0.05' }, 50, 900],
    [{ 'retry-after-ms': '1200' }, 1200, 1800],
    [{ 'retry-after-ms': '1200.7', 'retry-after': '50' }, 1200, 1800],
    // The provider's own clock counts, not this device's.
    [{ 'retry-after': at(3_000_000_002_000), date: at(3_000_000_000_000) }, 2000, 2600],
    [{ 'retry-after': at(0) }, 0, 900],
    [{ 'retry-after': 'soon' }, 300, 1100],
    [{ 'retry-after': '-5' }, 300, 1100],
    [{ 'retry-after': 'inf' }, 300, 1100],
    [{ 'retry-after': 'NaN' }, 300, 1100],
  ];
  for (const [headers, least, most] of waits) {
    provider.answers = [refuse(429, SLOW, headers), say('ok')];
    const { times, stop, wait } = await turnOf(siskin, provider, tab);
    const shown = JSON.stringify(headers);
    assert.deepEqual([times, stop], [2, 'end'], shown);
    assert.ok(wait >= least - 20 && wait < most + 500, `${shown}: waited ${wait} ms`);
  }
});

both('beyond a minute nobody waits, and the owner is told until when', async ({ provider, siskin, tab }) => {
  const waits = [
    [{ 'retry-after': '61' }, /slow down; try again in 61 s$/],
    [{ 'retry-after': '600' }, /try again in 10 minutes$/],
    [{ 'retry-after': '86400' }, /try again in 24 hours$/],
    [{ 'retry-after-ms': '120000' }, /try again in 120 s$/],
    [{ 'retry-after': at(Date.now() + 3_600_000) }, /try again in (59|60) minutes$/],
  ];
  for (const [headers, told] of waits) {
    provider.answers = [refuse(429, SLOW, headers)];
    const { times, stop } = await turnOf(siskin, provider, tab);
    assert.deepEqual([times, stop], [1, 'error'], JSON.stringify(headers));
    assert.match(await message(siskin, tab), told);
  }
  provider.answers = [refuse(401, SLOW, { 'retry-after': '600' })];
  await turnOf(siskin, provider, tab);
  assert.doesNotMatch(await message(siskin, tab), /try again/, 'what no wait mends');
});

// Status, body, headers, and whether it is asked for again.
const STATUSES = [
  [408, { error: { message: 'timeout' } }, {}, true],
  [409, { error: { type: 'conflict_error', message: 'conflict' } }, {}, true],
  [429, SLOW, {}, true],
  [500, { error: { type: 'api_error', message: 'internal' } }, {}, true],
  [502, '<html>bad gateway</html>', {}, true],
  [503, { error: { message: 'Loading model', type: 'unavailable_error', code: 503 } }, {}, true],
  [504, { error: { type: 'timeout_error', message: 'late' } }, {}, true],
  [529, { error: { type: 'overloaded_error', message: 'Overloaded' } }, {}, true],
  [529, '', {}, true],
  [500, { error: { message: 'no' } }, { 'x-should-retry': 'false' }, false],
  [429, SLOW, { 'x-should-retry': 'false', 'retry-after': '1' }, false],
  [400, { error: { message: 'odd' } }, { 'x-should-retry': 'true' }, true],
  [400, { error: { message: 'plainly wrong' } }, {}, false],
  [401, { error: { message: 'no' } }, {}, false],
  [403, { error: { type: 'permission_error', message: 'no' } }, {}, false],
  [404, { error: { message: "model 'x' not found", type: 'not_found_error' } }, {}, false],
  [418, 'I am a teapot', {}, false],
  // Quotas that are spent, in every form; a retry would change nothing even where a header says so.
  [402, { error: { type: 'billing_error', message: 'pay' } }, {}, false],
  [402, { error: { message: 'Insufficient Balance', type: 'unknown_error' } }, { 'retry-after': '1' }, false],
  [429, { error: { message: 'You exceeded your current quota', code: 'insufficient_quota' } }, {}, false],
  [429, { error: { message: 'm', type: 'insufficient_quota' } }, { 'x-should-retry': 'true' }, false],
  [429, { error: { message: 'm', code: 'billing_hard_limit_reached' } }, {}, false],
  [429, { error: { message: 'm', details: { error_code: 'enforced_spend_limit_reached' } } }, {}, false],
  [400, { error: { message: 'Your credit balance is too low to access the API' } }, {}, false],
  [403, { error: { message: 'Insufficient credits. Add more' } }, {}, false],
];

both('each status is asked for again or not', async ({ provider, siskin, tab }) => {
  for (const [status, body, headers, again] of STATUSES) {
    const name = `${status} ${JSON.stringify(body)} ${JSON.stringify(headers)}`;
    provider.answers = [refuse(status, body, headers), say('ok')];
    const { times, stop } = await turnOf(siskin, provider, tab);
    assert.deepEqual([times, stop], again ? [2, 'end'] : [1, 'error'], name);
    if (!again) {
      const told = await message(siskin, tab);
      assert.match(told, new RegExp(String(status)), name);
      assert.ok(told.length < 900 && !/\n/.test(told), name);
    }
    provider.answers = [];
  }
});

both('a CDN\'s page is told in one line, and the request id is logged', async ({ provider, siskin, tab }) => {
  const page = `<html>\n<head><title>413</title></head>\n<body>${'too large '.repeat(500)}</body></html>`;
  provider.answers = [refuse(418, page, { 'request-id': 'req_418' })];
  await siskin.turn(tab.id, 'go');
  const told = await message(siskin, tab);
  assert.match(told, /418.*<title>413/);
  assert.ok(told.length < 700 && !/[\r\n]/.test(told));
  provider.answers = [refuse(500, SLOW, { 'request-id': '', 'x-request-id': 'xreq_500' })];
  await siskin.turn(tab.id, 'go');
  assert.match(siskin.stderr, /418.*req_418/);
  assert.match(siskin.stderr, /500.*xreq_500/);
});

both(
  'a line that fails at any point shares one counter, and nothing that was shown is asked for again',
  async ({ wire, provider, siskin, tab }) => {
    const words = Array.from({ length: 20 }, (_, n) => `${n} `);
    const bytes = encode(events(wire, [text(...words)]));
    const afterHead = async (exchange) => {
      await exchange.head();
      await sleep(20);
      exchange.reset();
    };
    const after10 = (exchange) => {
      const cutAt = bytes.indexOf('"10 ');
      return stream(exchange, bytes, { cutAt: bytes.lastIndexOf('data:', cutAt), then: 'reset' });
    };
    let resets = 1;
    provider.onConnect = (socket) => {
      if (resets-- <= 0) return true;
      socket.resetAndDestroy();
      return false;
    };
    provider.answers = [afterHead, say('third time')];
    let before = provider.arrived;
    let turn = await siskin.turn(tab.id, 'reset at accept, then after the head');
    assert.equal(turn.stopReason, 'end');
    assert.equal(provider.arrived - before, 3);
    [resets, before] = [1, provider.arrived];
    provider.answers = [refuse(529, SLOW), afterHead];
    turn = await siskin.turn(tab.id, 'three causes, three tries');
    assert.equal(turn.stopReason, 'error');
    assert.equal(provider.arrived - before, 3);
    [resets, before] = [0, provider.arrived];
    provider.answers = [after10];
    turn = await siskin.turn(tab.id, 'reset after ten deltas');
    assert.equal(turn.stopReason, 'cut');
    assert.equal(provider.arrived - before, 1);
    const rows = (await siskin.log(tab.id)).filter((row) => row.turnId === turn.turnId);
    assert.equal(textOf(rows), words.slice(0, 10).join(''));
    assert.match(rows.at(-1).data.message, /broke off/);
  },
  { budget: { attempts: 3 } },
);

both(
  'each provider has its own limits, and their seconds are told',
  async ({ wire, provider, siskin, tab }) => {
    const limits = [
      ['quick', 1, 1],
      ['slow', 3, 2],
    ];
    siskin.options.tables = limits
      .map(([name, first, idle]) =>
        [
          `[[provider]]\nname = "${name}"\nkind = "${wire}"\nbase_url = "${provider.url}"`,
          `models = ["scripted"]\nfirst_event_s = ${first}\nidle_s = ${idle}`,
          `api_key_file = "${siskin.dir}/key"\n`,
        ].join('\n'),
      )
      .join('');
    siskin.configure();
    await siskin.restart();
    const bytes = encode(events(wire, [text('one ', 'two ', 'three')]));
    const twoThenSilent = say([text('one ', 'two ', 'three')], {
      cutAt: bytes.lastIndexOf('data:', bytes.indexOf('three')),
      then: 'silent',
    });
    const pings = async (exchange) => {
      await exchange.head();
      while (!exchange.gone) {
        await exchange.body(': ping\n\n');
        await sleep(100);
      }
    };
    for (const [name, first, idle] of limits) {
      await siskin.api('PATCH', `/api/tabs/${tab.id}`, { model: `${name}/scripted` });
      for (const [answer, seconds, told, shown] of [
        [(exchange) => exchange.silent(), first, `${first} s.*first_event_s`, ''],
        [pings, first, `${first} s.*first_event_s`, ''],
        [twoThenSilent, idle, `idle_s is ${idle} s`, 'one two '],
      ]) {
        provider.answers = [answer];
        const began = Date.now();
        const turn = await siskin.turn(tab.id, 'go', 20_000);
        const took = (Date.now() - began) / 1000;
        assert.ok(took >= seconds - 0.05 && took < seconds + 1.5, `${name}: ${took} s of ${seconds}`);
        assert.match(await message(siskin, tab), new RegExp(told));
        const rows = (await siskin.log(tab.id)).filter((row) => row.turnId === turn.turnId);
        assert.equal(textOf(rows), shown);
      }
    }
  },
);

// --- Fields that a server does not know ---

const unknown = (field) => ({ error: { message: `Unrecognized request argument supplied: ${field}` } });
const listed = (field) => ({
  detail: [{ type: 'extra_forbidden', loc: ['body', field], msg: 'Extra inputs' }],
});
const aside = (field) => ({
  error: { message: 'Unknown parameter', param: field, code: 'unknown_parameter' },
});

test('openai: each field that a server does not know is dropped once and remembered', async (t) => {
  for (const [status, form] of [
    [400, unknown],
    [422, listed],
    [400, aside],
  ]) {
    const { provider, siskin } = await setUp(t, { provider: { strict: false } });
    const tab = await siskin.newTab({ model: 'o/scripted' });
    await siskin.api('PATCH', `/api/tabs/${tab.id}`, { effort: 'high' });
    const fields = ['stream_options', 'reasoning_effort', 'max_tokens'];
    provider.always = (exchange) => {
      const named = fields.find((field) => field in exchange.json);
      return named ? refuse(status, form(named))(exchange) : say('ok')(exchange);
    };
    assert.equal((await siskin.turn(tab.id, 'one')).stopReason, 'end', JSON.stringify(form('x')));
    assert.deepEqual(
      provider.asked.map(({ json }) => fields.filter((field) => field in json)),
      [fields, fields.slice(1), fields.slice(2), []],
    );
    assert.equal((await siskin.turn(tab.id, 'two')).stopReason, 'end');
    assert.equal(provider.asked.length, 5, 'and never sent again');
    const kept = provider.asked.map(({ json }) => JSON.stringify([json.messages.slice(0, 2), json.tools]));
    assert.equal(new Set(kept).size, 1, 'nothing else changed');
    await siskin.end();
  }
});

test('openai: max_tokens takes its new name, and a model without tools goes without', async (t) => {
  const fields = ['max_tokens', 'max_completion_tokens', 'tools'];
  const { provider, siskin } = await setUp(t, { provider: { strict: false } });
  const tab = await siskin.newTab({ model: 'o/scripted' });
  provider.always = (exchange) => {
    const { json } = exchange;
    if ('max_tokens' in json) {
      const told =
        "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.";
      return refuse(400, { error: { message: told, param: 'max_tokens' } })(exchange);
    }
    if ('tools' in json)
      return refuse(400, { error: { message: 'registry/x does not support tools' } })(exchange);
    return say('ok')(exchange);
  };
  assert.equal((await siskin.turn(tab.id, 'one')).stopReason, 'end');
  assert.equal((await siskin.turn(tab.id, 'two')).stopReason, 'end');
  assert.deepEqual(
    provider.asked.map(({ json }) => fields.filter((field) => field in json)),
    [
      ['max_tokens', 'tools'],
      ['max_completion_tokens', 'tools'],
      ['max_completion_tokens'],
      ['max_completion_tokens'],
    ],
  );
});

test('anthropic: thinking and effort that a model does not take are left out', async (t) => {
  const { provider, siskin } = await setUp(t, { provider: { strict: false, models: ['claude-x-9'] } });
  siskin.options.providerConfig = 'models = ["claude-x-9"]';
  const tab = await siskin.newTab({ model: 'a/claude-x-9' });
  await siskin.api('PATCH', `/api/tabs/${tab.id}`, { effort: 'high' });
  const invalid = (told) =>
    refuse(400, { type: 'error', error: { type: 'invalid_request_error', message: told } });
  provider.always = (exchange) => {
    const { thinking, output_config: output } = exchange.json;
    if (thinking) return invalid('adaptive thinking is not supported on this model')(exchange);
    if (output) return invalid('output_config.effort: Extra inputs are not permitted')(exchange);
    return say('ok')(exchange);
  };
  assert.equal((await siskin.turn(tab.id, 'one')).stopReason, 'end');
  assert.equal((await siskin.turn(tab.id, 'two')).stopReason, 'end');
  assert.deepEqual(
    provider.asked.map(({ json }) => ['thinking', 'output_config'].filter((field) => field in json)),
    [['thinking', 'output_config'], ['output_config'], [], []],
  );
});

test('a refusal that names a field which is not sent is the end, not a loop', async (t) => {
  const { provider, siskin } = await setUp(t, { provider: { strict: false } });
  for (const model of Object.values(WIRES)) {
    const tab = await siskin.newTab({ model });
    const before = provider.asked.length;
    const told = 'unknown fields: stream_options, max_tokens, thinking';
    provider.always = refuse(400, { error: { message: told } });
    assert.equal((await siskin.turn(tab.id, 'one')).stopReason, 'error', model);
    assert.ok(provider.asked.length - before <= 4, `${provider.asked.length - before} times`);
  }
});

// --- What ends a turn that would go on for ever ---

both(
  'a model that only ever calls is stopped at its limits',
  async ({ provider, siskin, tab }) => {
    provider.always = say(() => [call('system_info', {})]);
    const turn = await siskin.turn(tab.id, 'go', 30_000);
    assert.equal(turn.stopReason, 'limit');
    assert.equal(provider.asked.length, 5);
    assert.match((await siskin.log(tab.id)).at(-1).data.text, /limit of 5 requests/);
    provider.always = say(() => Array.from({ length: 4 }, () => call('list_files', { path: '.' })));
    const many = await siskin.turn(tab.id, 'many', 30_000);
    assert.equal(many.stopReason, 'limit');
    assert.match((await siskin.log(tab.id)).at(-1).data.text, /limit of 7 tool calls/);
    provider.always = say('ok');
    assert.equal((await siskin.turn(tab.id, 'go on')).stopReason, 'end');
  },
  { budget: { attempts: 2, steps: 5, calls: 7 } },
);
