// Turns over both wires: text, thinking, tools with real files, usage, and what goes back to the provider.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { Siskin, textOf } from '../fixture.mjs';
import { assertPrefix } from '../body.mjs';
import { call, Provider, refuse, say, text, thinking } from '../provider.mjs';

const WIRES = { anthropic: 'a/scripted', openai: 'o/scripted' };

/** One test a wire, with a tab and a peer that has it open. */
function both(name, body, options = {}) {
  for (const [wire, model] of Object.entries(WIRES)) {
    test(`${wire}: ${name}`, async (t) => {
      const provider = await Provider.start(options.provider);
      t.after(() => provider.stop());
      const siskin = await Siskin.start(t, { provider, ...options });
      const tab = await siskin.newTab({ model });
      const peer = await siskin.peer();
      await peer.open(tab.id);
      await body({ t, wire, provider, siskin, tab, peer });
      assert.equal(provider.fault, undefined);
      const bodies = provider.asked.map((request) => request.text);
      bodies.slice(1).forEach((next, n) => assertPrefix(bodies[n], next));
    });
  }
}

/** The results that a request carries, as `[id, text]`. */
function results(request) {
  const { messages } = request.json;
  if (request.wire === 'openai') {
    const last = messages.findLastIndex((message) => message.role === 'assistant');
    return messages
      .slice(last + 1)
      .filter((m) => m.role === 'tool')
      .map((m) => [m.tool_call_id, m.content]);
  }
  return messages
    .at(-1)
    .content.filter((block) => block.type === 'tool_result')
    .map((block) => [
      block.tool_use_id,
      [block.content ?? '']
        .flat()
        .map((part) => part.text ?? part)
        .join(''),
    ]);
}

const faults = (provider) => provider.asked.map((request) => request.fault).filter(Boolean);

both(
  'an answer is streamed, sealed, counted and told in order',
  async ({ wire, provider, siskin, tab, peer }) => {
    provider.answers = [say([text('Hello', ', ', 'wörld', ' 👍')], { pauseMs: 3, split: 40 })];
    const { turnId } = await siskin.send(tab.id, 'hi');
    await peer.turns();
    const told = peer.frames
      .map((frame) => frame.type)
      .filter((type) => !['welcome', 'tab', 'window', 'pong'].includes(type));
    const short = told.filter((type, at) => type !== told[at - 1]);
    assert.deepEqual(
      short,
      [
        'turn-start',
        'status',
        'chunk',
        'chunk-open',
        'chunk-delta',
        'chunk',
        'turn-sealed',
        'status',
      ].filter((type) => type !== 'chunk-delta' || short.includes(type)),
    );
    assert.ok(peer.deltas >= 1 || peer.frames.some((frame) => frame.type === 'chunk-open'));
    assert.deepEqual(peer.rows, await siskin.log(tab.id));
    assert.equal(peer.text(turnId), 'Hello, wörld 👍');
    const usage =
      wire === 'anthropic'
        ? { input: 11, cacheRead: 100, cacheWrite: 7, output: 5 }
        : { input: 18, cacheRead: 100, cacheWrite: 0, output: 5 };
    const sealed = peer.sealed[0];
    assert.deepEqual(
      [sealed.turnId, sealed.firstSeq, sealed.lastSeq, sealed.stopReason],
      [turnId, 1, 2, 'end'],
    );
    for (const [key, value] of Object.entries(usage)) {
      assert.equal(sealed.usage[key], value, key);
      assert.equal((await siskin.tab(tab.id)).usage[key], value, key);
    }
    const turn = await siskin.lastTurn(tab.id);
    assert.deepEqual(
      [turn.turnId, turn.ordinal, turn.firstSeq, turn.lastSeq, turn.status, turn.stopReason],
      [turnId, 1, 1, 2, 'done', 'end'],
    );
    assert.equal(turn.steps.length, 1);
    assert.equal(turn.steps[0].model, WIRES[wire]);
    assert.equal(turn.steps[0].usage.output, 5);
    assert.match(turn.steps[0].prefix.hash, /^[0-9a-f]{16,}$/);
    assert.ok(turn.startedAt <= turn.sealedAt);
  },
);

both(
  'tools read real files, and all results go back in one piece',
  async ({ provider, siskin, tab, peer }) => {
    fs.writeFileSync(path.join(siskin.workdir, 'note.txt'), 'the answer is 42\n');
    fs.mkdirSync(path.join(siskin.workdir, 'sub'));
    provider.answers = [
      say([
        text('Let me look.'),
        call('read_file', { path: 'note.txt' }),
        call('list_files', { path: '.' }),
        call('search', { query: 'ANSWER' }),
        call('no_such_tool', { x: 1 }),
        call('read_file', '{"path":'),
        call('system_info', ''),
      ]),
      say('It is 42.'),
    ];
    await siskin.send(tab.id, 'what is in note.txt?');
    await peer.turns();
    assert.deepEqual(faults(provider), []);
    assert.equal(peer.sealed[0].stopReason, 'end');
    const rows = await siskin.log(tab.id);
    assert.deepEqual(peer.rows, rows);
    const calls = rows.filter((row) => row.type === 'tool_call');
    const given = results(provider.asked[1]);
    // Chat completions have ids of their own, the same in call and result.
    const made = provider.asked[1].json.messages.find((message) => message.tool_calls)?.tool_calls;
    assert.deepEqual(
      given.map(([id]) => id),
      made ? made.map((call) => call.id) : calls.map((row) => row.data.callId),
      'in the order of the calls',
    );
    for (const { id } of made ?? []) assert.match(id, /^[A-Za-z0-9]{9}$/);
    assert.equal(given.length, 6);
    assert.match(given[0][1], /the answer is 42/);
    assert.match(given[1][1], /note\.txt[\s\S]*sub\//);
    assert.match(given[2][1], /note\.txt:1:/);
    const ends = rows.filter((row) => row.type === 'tool_result' && 'isError' in row.data);
    assert.deepEqual(
      ends.map((row) => row.data.isError),
      [false, false, false, true, true, false],
    );
    assert.equal(textOf(rows), 'Let me look.It is 42.');
    assert.equal((await siskin.lastTurn(tab.id)).steps.length, 2);
  },
);

both('what lies outside the working directory is not read', async ({ provider, siskin, tab, peer }) => {
  fs.writeFileSync(path.join(siskin.dir, 'secret.txt'), 'SECRET');
  fs.symlinkSync(path.join(siskin.dir, 'secret.txt'), path.join(siskin.workdir, 'link'));
  fs.symlinkSync(siskin.dir, path.join(siskin.workdir, 'dir'));
  const paths = [
    '../secret.txt',
    '../../secret.txt',
    path.join(siskin.dir, 'secret.txt'),
    'link',
    'dir/secret.txt',
    'sub/../../../secret.txt',
    '/etc/passwd',
    '/proc/self/environ',
    '../siskin.db',
    '..',
    '',
  ];
  provider.answers = [
    say([
      ...paths.map((one) => call('read_file', { path: one })),
      call('search', { query: 'SECRET', path: '..' }),
      call('search', { query: 'SECRET' }),
      call('list_files', { path: '..' }),
      call('list_files', { path: 'dir' }),
    ]),
    say('no'),
  ];
  await siskin.send(tab.id, 'read');
  await peer.turns();
  assert.deepEqual(faults(provider), []);
  const rows = (await siskin.log(tab.id)).filter((row) => row.type === 'tool_result');
  assert.equal(rows.length, paths.length + 4);
  const read = rows.slice(0, paths.length);
  read.forEach((row, n) =>
    assert.equal(row.data.isError, true, `${paths[n]}: ${row.data.result.slice(0, 100)}`),
  );
  for (const row of rows)
    assert.doesNotMatch(
      row.data.result.replace(/"?SECRET"?.*not found|no .*SECRET.*/i, ''),
      /SECRET$|root:x:|PATH=/m,
      row.data.result.slice(0, 200),
    );
});

both('output that is not text cannot break the conversation', async ({ provider, siskin, tab, peer }) => {
  const nasty = Buffer.from('a\0b\x1b[31mred\x1b[0m\x1b]0;t\x07\xff\xfe é\n', 'latin1');
  fs.writeFileSync(path.join(siskin.workdir, 'nasty'), nasty);
  fs.writeFileSync(path.join(siskin.workdir, 'empty'), '');
  fs.writeFileSync(path.join(siskin.workdir, 'big.txt'), 'line of text é\n'.repeat(40_000));
  fs.writeFileSync(path.join(siskin.workdir, 'wide.txt'), '字'.repeat(200_000));
  const files = ['nasty', 'empty', 'big.txt', 'wide.txt'];
  provider.answers = [say(files.map((one) => call('read_file', { path: one }))), say('seen')];
  await siskin.send(tab.id, 'read them');
  await peer.turns();
  assert.deepEqual(faults(provider), []);
  for (const [, value] of results(provider.asked[1])) {
    assert.doesNotMatch(value, /[\0-\x08\x0b-\x1f\x7f]/);
    assert.ok(Buffer.byteLength(value) <= 34 * 1024, `${Buffer.byteLength(value)} bytes`);
  }
  assert.deepEqual(peer.rows, await siskin.log(tab.id));
});

both('ids that come twice or not at all are made unique', async ({ wire, provider, siskin, tab, peer }) => {
  const ids =
    wire === 'openai'
      ? ['call_0', 'call_0', '', 'terminal:0']
      : ['call_0', 'call_0', 'call_0', 'terminal:0'];
  for (const id of ids) provider.answers.push(say([call('system_info', {}, id)]), say('ok'));
  for (let n = 1; n <= ids.length; n += 1) {
    await siskin.send(tab.id, `turn ${n}`);
    await peer.turns(n);
  }
  assert.deepEqual(faults(provider), []);
  const stored = (await siskin.log(tab.id))
    .filter((row) => row.type === 'tool_call')
    .map((row) => row.data.callId);
  assert.equal(new Set(stored).size, ids.length);
  stored.forEach((id) => assert.match(id, /^[A-Za-z0-9_-]+$/));
});

both('long text is cut into parts and goes back whole', async ({ wire, provider, siskin, tab, peer }) => {
  const long = Array.from(
    { length: 3000 },
    (_, n) => `Line ${n} with é👍 and "quotes"\n${n % 9 ? '' : '\n'}`,
  ).join('');
  const pieces = long.match(/[\s\S]{1,900}/gu);
  provider.answers = [say([text(...pieces)]), say('ok')];
  await siskin.send(tab.id, 'x'.repeat(120 * 1024));
  await peer.turns();
  await siskin.send(tab.id, 'and?');
  await peer.turns(2);
  const rows = (await siskin.log(tab.id)).filter((row) => row.turnId === peer.sealed[0].turnId);
  assert.equal(textOf(rows), long);
  const parts = rows.filter((row) => row.role === 'assistant');
  assert.ok(parts.length > 5);
  assert.deepEqual(
    parts.map((row) => row.data.part),
    parts.map((_, n) => n || undefined),
  );
  const { messages } = provider.asked[1].json;
  const said = messages.find((message) => message.role === 'assistant').content;
  assert.equal(wire === 'openai' ? said : said.map((block) => block.text).join(''), long);
  assert.deepEqual(faults(provider), []);
});

both(
  'long arguments are streamed, kept in parts, and replayed whole',
  async ({ wire, provider, siskin, tab, peer }) => {
    const args = JSON.stringify({ path: 'nowhere', extra: 'é"\\'.repeat(12_000) });
    provider.answers = [say([call('read_file', args.match(/[\s\S]{1,500}/gu))]), say('ok')];
    await siskin.send(tab.id, 'go');
    await peer.turns();
    assert.deepEqual(faults(provider), []);
    const rows = (await siskin.log(tab.id)).filter((row) => row.type === 'tool_call');
    assert.ok(rows.length > 1);
    assert.equal(rows.map((row) => row.data.arguments).join(''), args);
    const message = provider.asked[1].json.messages.find((one) => one.role === 'assistant');
    const input =
      wire === 'openai' ? JSON.parse(message.tool_calls[0].function.arguments) : message.content[0].input;
    assert.deepEqual(input, JSON.parse(args));
  },
);

both('what has no text is not replayed as empty text', async ({ provider, siskin, tab, peer }) => {
  provider.answers = [
    say([text(''), call('system_info')]),
    say([text('\n')]),
    say([text('  '), call('system_info')]),
    say('end'),
    say('last'),
  ];
  for (let n = 1; n <= 3; n += 1) {
    await siskin.send(tab.id, `turn ${n}`);
    await peer.turns(n);
  }
  assert.deepEqual(faults(provider), []);
  assert.ok(provider.asked.length <= 6, 'and that is not tried for ever');
});

both(
  'an answer that ends at its limit inside a call runs nothing',
  async ({ provider, siskin, tab, peer }) => {
    provider.answers = [
      say([call('read_file', ['{"path":"a","con', 'tent":"hel'])], { stop: 'max' }),
      say('ok'),
      say('ok'),
    ];
    await siskin.send(tab.id, 'go');
    await peer.turns();
    await siskin.send(tab.id, 'and now?');
    await peer.turns(2);
    assert.deepEqual(faults(provider), []);
    const rows = await siskin.log(tab.id);
    const result = rows.find((row) => row.type === 'tool_result');
    if (result) {
      assert.equal(result.data.isError, true);
      assert.match(result.data.result, /limit|max_tokens|cut/i);
    } else assert.equal(rows.find((row) => row.type === 'tool_call').data.cut, true);
    assert.ok(provider.asked.length <= 3, 'at most one retry');
  },
);

both(
  'an answer that ends at its limit inside text is kept and said to be',
  async ({ provider, siskin, tab, peer }) => {
    provider.answers = [say('half a sen', { stop: 'max' })];
    await siskin.send(tab.id, 'go');
    await peer.turns();
    assert.equal(peer.sealed[0].stopReason, 'max_tokens');
    assert.equal(textOf(await siskin.log(tab.id)), 'half a sen');
  },
);

both('a refused answer never goes back', async ({ wire, provider, siskin, tab, peer }) => {
  provider.answers = [say('I was about to', { stop: 'refused' }), say('ok')];
  await siskin.send(tab.id, 'go');
  await peer.turns();
  assert.equal(peer.sealed[0].stopReason, 'refused');
  await siskin.send(tab.id, 'something else');
  await peer.turns(2);
  assert.deepEqual(faults(provider), []);
  assert.doesNotMatch(provider.asked[1].text, /about to/, wire);
});

test('thinking is shown, its signature is not, and it goes back as it was', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  const tab = await siskin.newTab();
  const peer = await siskin.peer();
  await peer.open(tab.id);
  const signature = `SIGNATURE${'é+/='.repeat(3000)}`;
  provider.answers = [
    say([
      { ...thinking('Let me ', 'think…'), signature },
      { redacted: 'REDACTED-DATA' },
      call('system_info'),
    ]),
    say([{ thinking: [], signature: 'SIGNATURE-of-nothing' }, text('Done.')]),
    say('again'),
  ];
  await siskin.send(tab.id, 'think');
  await peer.turns();
  await siskin.kill();
  await siskin.restart();
  await siskin.turn(tab.id, 'more');
  assert.deepEqual(
    faults(provider),
    [],
    'the strict provider takes the thinking back, also after a restart',
  );
  const first = provider.asked[2].json.messages[1].content;
  assert.deepEqual(first.slice(0, 2), [
    { type: 'thinking', thinking: 'Let me think…', signature },
    { type: 'redacted_thinking', data: 'REDACTED-DATA' },
  ]);
  assert.deepEqual(provider.asked[2].json.messages[3].content[0], {
    type: 'thinking',
    thinking: '',
    signature: 'SIGNATURE-of-nothing',
  });
  const rows = await siskin.log(tab.id);
  const shown = JSON.stringify([rows, peer.frames]);
  assert.doesNotMatch(shown, /SIGNATURE|REDACTED-DATA/);
  assert.equal(
    rows
      .filter((row) => row.type === 'thinking')
      .map((row) => row.data.text)
      .join(''),
    'Let me think…',
  );
  provider.asked.slice(1).forEach((request, n) => assertPrefix(provider.asked[n].text, request.text));
});

test('thinking of another model stays behind after a switch', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  const tab = await siskin.newTab({ model: 'a/scripted' });
  provider.answers = [say([thinking('hm'), text('one')])];
  await siskin.turn(tab.id, 'first');
  for (const model of ['a/other', 'o/scripted', 'a/scripted']) {
    assert.equal((await siskin.api('PATCH', `/api/tabs/${tab.id}`, { model })).status, 200);
    assert.equal((await siskin.turn(tab.id, `to ${model}`)).stopReason, 'end', model);
  }
  assert.deepEqual(faults(provider), []);
  assert.doesNotMatch(provider.asked[1].text, /"thinking":"hm"/);
  const kinds = (await siskin.log(tab.id))
    .filter((row) => row.type === 'system')
    .map((row) => row.data.kind);
  assert.deepEqual(kinds, ['model-changed', 'model-changed', 'model-changed']);
});

test('reasoning goes back only where the provider wants it', async (t) => {
  for (const wanted of [true, false]) {
    const provider = await Provider.start({ openai: { wantReasoning: wanted } });
    t.after(() => provider.stop());
    const siskin = await Siskin.start(t, { provider, providerConfig: `replay_reasoning = ${wanted}` });
    const tab = await siskin.newTab({ model: 'o/scripted' });
    provider.answers = [say([{ thinking: ['because'] }, call('system_info')]), say('ok')];
    assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'end');
    assert.equal(/reasoning_content/.test(provider.asked[1].text), wanted);
    const rows = await siskin.log(tab.id);
    assert.equal(rows.find((row) => row.type === 'thinking').data.text, 'because');
  }
});

test('a field that a server does not know is dropped once and remembered', async (t) => {
  const provider = await Provider.start({ openai: { refuse: ['stream_options'] } });
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  const tab = await siskin.newTab({ model: 'o/scripted' });
  assert.equal((await siskin.turn(tab.id, 'one')).stopReason, 'end');
  assert.equal((await siskin.turn(tab.id, 'two')).stopReason, 'end');
  assert.deepEqual(
    provider.asked.map((request) => 'stream_options' in request.json),
    [true, false, false],
  );
});

test('a request is small, fixed in its order, and says what it is', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  for (const model of Object.values(WIRES)) {
    const tab = await siskin.newTab({ model });
    await siskin.turn(tab.id, 'hello');
    const request = provider.asked.at(-1);
    assert.ok(request.bytes.length <= 6000, `${request.bytes.length} bytes`);
    assert.equal(request.json.stream, true);
    assert.equal(request.json.model, 'scripted');
    assert.equal(Number(request.headers['content-length']), request.bytes.length);
    assert.deepEqual(
      [request.headers['x-api-key'] ?? '', request.headers.authorization ?? ''].filter(Boolean).length,
      1,
    );
  }
  const [a, b] = provider.asked.map((request) => request.text);
  assert.notEqual(a, b);
});

test('the demo talks, thinks and calls real tools without any network', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  const tab = await siskin.newTab();
  const peer = await siskin.peer();
  await peer.open(tab.id);
  await siskin.send(tab.id, 'hello');
  await peer.turns(1, 60_000);
  assert.equal(peer.sealed[0].stopReason, 'end');
  const rows = await siskin.log(tab.id);
  assert.deepEqual(peer.rows, rows);
  assert.ok(textOf(rows).length > 10);
  assert.equal((await siskin.status()).demo, true);
  assert.equal((await siskin.get('/api/models')).models[0].id, tab.model);
});

test('thinking that the provider refuses is dropped once, said, and never comes back', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  const tab = await siskin.newTab();
  const message =
    'messages.1.content.0.thinking: The block is bound to a different conversation';
  const bound = refuse(400, { type: 'error', error: { type: 'invalid_request_error', message } });
  provider.answers = [say([thinking('hm'), text('one')]), bound, say('two'), say('three')];
  await siskin.turn(tab.id, 'first');
  assert.equal((await siskin.turn(tab.id, 'second')).stopReason, 'end');
  assert.equal(provider.asked.length, 3, 'one more try');
  assert.match(provider.asked[1].text, /"type":"thinking","thinking":"hm"/);
  const rows = await siskin.log(tab.id);
  assert.equal(rows.filter((row) => row.data.kind === 'thinking-dropped').length, 1);
  await siskin.restart();
  assert.equal((await siskin.turn(tab.id, 'third')).stopReason, 'end');
  for (const request of provider.asked.slice(2))
    assert.doesNotMatch(request.text, /"type":"thinking","thinking"/);
  assertPrefix(provider.asked[2].text, provider.asked[3].text);
  provider.answers = [bound, bound, bound];
  assert.equal((await siskin.turn(tab.id, 'fourth')).stopReason, 'error', 'there is nothing left to drop');
  assert.ok(provider.asked.length <= 6, 'and that is not tried for ever');
});
