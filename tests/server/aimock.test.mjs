// Turns against a provider that nobody here wrote: `@copilotkit/aimock`, a mock of both APIs for testing
// clients.
//
// Between it and the server stands a relay that keeps each request's body byte for byte, since aimock's own
// journal holds parsed ones. aimock has no cache counters and binds no thinking; what those need is tested
// with the scripted provider.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import test from 'node:test';
import { LLMock } from '@copilotkit/aimock';
import { assertPrefix } from '../body.mjs';
import { atEnd, Siskin, textOf } from '../fixture.mjs';
import { checkAnthropic, checkOpenai } from '../strict.mjs';

const WIRES = { anthropic: 'a/claude-opus-5-5', openai: 'o/gpt-5' };

/** Passes bytes both ways and keeps the bodies of what is posted. */
async function relay(t, port) {
  const bodies = [];
  const sockets = new Set();
  const server = net.createServer((near) => {
    const far = net.connect(port, '127.0.0.1');
    let held = Buffer.alloc(0);
    near.on('data', (bytes) => {
      held = take(Buffer.concat([held, bytes]), bodies);
    });
    for (const [one, other] of [
      [near, far],
      [far, near],
    ]) {
      sockets.add(one);
      one.on('error', () => other.destroySoon());
      // What was written is still delivered.
      one.on('close', () => other.destroySoon());
      one.pipe(other);
    }
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  atEnd(t, async () => {
    for (const socket of sockets) socket.destroy();
    await new Promise((done) => server.close(done));
  });
  return { bodies, url: `http://127.0.0.1:${server.address().port}` };
}

/** Takes whole requests off the front of `held`. */
function take(held, bodies) {
  for (;;) {
    const end = held.indexOf('\r\n\r\n');
    if (end < 0) return held;
    const head = held.subarray(0, end).toString('latin1');
    const length = Number(/^content-length: *(\d+)/im.exec(head)?.[1] ?? 0);
    if (held.length < end + 4 + length) return held;
    if (/^POST/.test(head)) bodies.push(held.subarray(end + 4, end + 4 + length).toString('utf8'));
    held = held.subarray(end + 4 + length);
  }
}

/** One test a wire, with a mock, a server, a tab, and a peer that has it open. */
function both(name, body, { wires = Object.keys(WIRES), ...options } = {}) {
  for (const wire of wires) {
    test(`${wire}: ${name}`, async (t) => {
      const mock = new LLMock({ port: 0, strict: true, chunkSize: 7 });
      await mock.start();
      atEnd(t, () => mock.stop());
      const { bodies, url } = await relay(t, Number(new URL(mock.url).port));
      const siskin = await Siskin.start(t, { provider: { url, key: 'test-key' }, ...options });
      fs.writeFileSync(path.join(siskin.workdir, 'note.txt'), 'the answer is 42\n');
      const tab = await siskin.newTab({ model: WIRES[wire] });
      const peer = await siskin.peer();
      await peer.open(tab.id);
      await body({ wire, mock, siskin, tab, peer, bodies });
      bodies.slice(1).forEach((next, n) => assertPrefix(bodies[n], next));
      for (const text of bodies) assert.equal(shape(wire, text), null);
      if (!peer.end) assert.deepEqual(peer.rows, await siskin.log(tab.id), 'the browser holds the log');
    });
  }
}

/** What the strict check says, thinking's signatures aside: those were not made by the scripted provider. */
function shape(wire, text) {
  const bindings = { fault: (_, __, block) => (block.signature || block.data ? null : 'unsigned') };
  const body = JSON.parse(text);
  return wire === 'anthropic' ? checkAnthropic(body, bindings) : checkOpenai(body);
}

/** The statuses with which the mock answered. */
const statuses = (mock) =>
  mock
    .getRequests()
    .filter((entry) => entry.method === 'POST')
    .map((entry) => entry.response.status);

both('text is streamed, counted and kept', async ({ wire, mock, siskin, tab, bodies }) => {
  const said = 'Hello, wörld 字 👍👍: "quoted" \\ and\nlines.';
  mock.onMessage('hi', { content: said, usage: { input_tokens: 21, output_tokens: 9, prompt_tokens: 21 } });
  // It cuts at UTF-16 units, so each half of a pair comes in an event of its own.
  const cut = 'ab👍'.repeat(10);
  mock.onMessage('cut', { content: cut });
  mock.onMessage('again', { content: 'Once more.' });
  const turn = await siskin.turn(tab.id, 'hi');
  assert.equal(turn.stopReason, 'end');
  assert.equal(textOf(await siskin.log(tab.id)), said);
  if (wire === 'anthropic') {
    const { input, output } = turn.steps[0].usage;
    assert.deepEqual([input, output], [21, 9]);
  }
  await siskin.turn(tab.id, 'cut');
  assert.equal(textOf(await siskin.log(tab.id)), said + cut);
  assert.equal((await siskin.turn(tab.id, 'again')).stopReason, 'end');
  assert.equal(bodies.length, 3);
  assert.deepEqual(statuses(mock), [200, 200, 200]);
  const { messages } = mock.getLastRequest().body;
  assert.deepEqual(
    messages.slice(-3).map(({ role, content }) => [role, content]),
    [
      ['user', 'cut'],
      ['assistant', cut],
      ['user', 'again'],
    ],
  );
});

both('tools run, and their results are answered', async ({ mock, siskin, tab, bodies }) => {
  mock.on(
    { userMessage: 'note', hasToolResult: false },
    {
      content: 'I look.',
      toolCalls: [
        { name: 'read_file', arguments: { path: 'note.txt' } },
        { name: 'list_files', arguments: { path: '.' } },
        { name: 'read_file', arguments: { path: 'nowhere' } },
        { name: 'system_info', arguments: {} },
      ],
    },
  );
  mock.on({ userMessage: 'note', hasToolResult: true }, { content: 'It is 42.' });
  for (const [n, text] of ['what is in the note?', 'read the note again'].entries()) {
    assert.equal((await siskin.turn(tab.id, text)).steps.length, 2, `turn ${n + 1}`);
  }
  const rows = await siskin.log(tab.id);
  assert.equal(textOf(rows), 'I look.It is 42.'.repeat(2));
  const ends = rows.filter((row) => row.type === 'tool_result').map((row) => row.data.isError);
  assert.deepEqual(ends, [false, false, true, false, false, false, true, false]);
  const told = mock
    .getRequests()
    .at(-1)
    .body.messages.filter((message) => message.role === 'tool');
  assert.match(told[0].content, /the answer is 42/);
  assert.equal(told.length, 8);
  assert.equal(bodies.length, 4);
});

both(
  'calls before and between texts keep their results',
  async ({ mock, siskin, tab }) => {
    mock.on(
      { userMessage: 'go', hasToolResult: false },
      {
        blocks: [
          { type: 'toolCall', name: 'system_info', arguments: '{}' },
          { type: 'text', text: 'between' },
          { type: 'toolCall', name: 'read_file', arguments: '{"path":"note.txt"}' },
        ],
      },
    );
    mock.on({ userMessage: 'go', hasToolResult: true }, { content: 'done' });
    assert.equal((await siskin.turn(tab.id, 'go')).stopReason, 'end');
    const kinds = (await siskin.log(tab.id)).map((row) => row.type);
    assert.deepEqual(kinds, ['text', 'tool_call', 'text', 'tool_call', 'tool_result', 'tool_result', 'text']);
  },
  { wires: ['anthropic'] },
);

both('thinking is shown, and goes back as it was signed', async ({ wire, mock, siskin, tab, bodies }) => {
  const reasoning = 'Let me think about the note.';
  const reasoningSignature = 'c2lnbmF0dXJl+/=='.repeat(40);
  mock.on(
    { userMessage: 'note', hasToolResult: false },
    {
      toolCalls: [{ name: 'read_file', arguments: { path: 'note.txt' } }],
      reasoning,
      reasoningSignature,
      redactedThinking: ['UkVEQUNURUQ='],
    },
  );
  mock.on({ userMessage: 'note', hasToolResult: true }, { content: '42.', reasoning: 'I see.' });
  mock.onMessage('thanks', { content: 'Welcome.' });
  assert.equal((await siskin.turn(tab.id, 'the note?')).stopReason, 'end');
  await siskin.restart();
  assert.equal((await siskin.turn(tab.id, 'thanks')).stopReason, 'end');
  assert.deepEqual(statuses(mock), [200, 200, 200], 'its own check of thinking is content');
  const rows = await siskin.log(tab.id);
  assert.doesNotMatch(JSON.stringify(rows), /c2lnbmF0dXJl|UkVEQUNURUQ/);
  const shown = rows.filter((row) => row.type === 'thinking').map((row) => row.data.text);
  assert.equal(shown.join(''), `${reasoning}I see.`);
  if (wire === 'openai') return;
  for (const text of bodies.slice(1)) {
    const blocks = JSON.parse(text).messages[1].content;
    const kept = blocks.filter((block) => /thinking/.test(block.type));
    assert.deepEqual(
      new Set(kept.map((block) => block.signature ?? block.data)),
      new Set([reasoningSignature, 'UkVEQUNURUQ=']),
    );
    assert.equal(kept.find((block) => block.type === 'thinking').thinking, reasoning);
  }
});

for (const status of [429, 529]) {
  both(`a ${status} is tried again after the time that is asked for`, async ({ mock, siskin, tab }) => {
    mock.onMessage('hi', { content: 'There.' });
    mock.nextRequestError(status, { message: 'too busy', type: 'overloaded_error' });
    const began = Date.now();
    assert.equal((await siskin.turn(tab.id, 'hi')).stopReason, 'end');
    if (status === 429) assert.ok(Date.now() - began >= 1000, 'retry-after: 1');
    assert.deepEqual(statuses(mock), [status, 200]);
    assert.equal(textOf(await siskin.log(tab.id)), 'There.');
  });
}

both('what is refused for good is told once', async ({ mock, siskin, tab }) => {
  // What got no answer goes with the next message, so both are in it then.
  mock.onMessage('later', { content: 'There.' });
  mock.onMessage('hi', { error: { message: 'no such model', type: 'not_found_error' }, status: 404 });
  assert.equal((await siskin.turn(tab.id, 'hi')).stopReason, 'error');
  assert.deepEqual(statuses(mock), [404]);
  const error = (await siskin.log(tab.id)).at(-1);
  assert.equal(error.type, 'error');
  assert.match(error.data.message, /no such model/);
  assert.equal((await siskin.turn(tab.id, 'later')).stopReason, 'end');
});

// Without a delay aimock ends the connection before its first byte is on the way.
for (const [how, options] of [
  ['after some events', { truncateAfterChunks: 6, latency: 5 }],
  ['after some time', { disconnectAfterMs: 150, streamingProfile: { ttft: 1, tps: 20 } }],
]) {
  both(`a stream that is cut ${how} is kept, said to be, and gone on from`, async ({ mock, siskin, tab }) => {
    const content = 'The quick brown fox jumps over the lazy dog. '.repeat(20);
    mock.onMessage('story', { content }, options);
    mock.onMessage('go on', { content: 'And so on.' });
    assert.equal((await siskin.turn(tab.id, 'a story')).stopReason, 'cut');
    const rows = await siskin.log(tab.id);
    const kept = textOf(rows);
    assert.ok(kept.length > 0 && content.startsWith(kept), `kept ${kept.length}`);
    assert.equal(rows.at(-1).type, 'error');
    assert.equal((await siskin.turn(tab.id, 'go on')).stopReason, 'end');
    const { messages } = mock.getLastRequest().body;
    assert.equal(messages.at(-2).content, kept);
  });
}

both('a call that is cut is not run', async ({ mock, siskin, tab }) => {
  mock.onMessage('go on', { content: 'fine' });
  mock.on(
    { userMessage: 'read', hasToolResult: false },
    { toolCalls: [{ name: 'read_file', arguments: { path: 'p'.repeat(300) } }] },
    { truncateAfterChunks: 12, latency: 5 },
  );
  assert.equal((await siskin.turn(tab.id, 'read')).stopReason, 'cut');
  const rows = await siskin.log(tab.id);
  assert.equal(rows.filter((row) => row.type === 'tool_result').length, 0);
  assert.equal(rows.find((row) => row.type === 'tool_call').data.cut, true);
  assert.equal((await siskin.turn(tab.id, 'go on')).stopReason, 'end');
});

both('a slow answer is waited for, and shown as it comes', async ({ mock, siskin, tab, peer }) => {
  const content = 'slowly but surely, word by word, it comes';
  mock.onMessage('hi', { content }, { latency: 30, streamingProfile: { ttft: 400, tps: 30, jitter: 0.2 } });
  const began = Date.now();
  await siskin.send(tab.id, 'hi');
  await peer.until(() => peer.open_, 'the open chunk');
  assert.ok(Date.now() - began >= 350);
  await peer.turns();
  assert.ok(peer.deltas >= 2, `${peer.deltas} deltas`);
  assert.equal(peer.text(), content);
});

const chaotic = async ({ mock, siskin, tab }) => {
  mock.onMessage('fine', { content: 'fine' });
  for (const [n, chaos] of [{ malformedRate: 1 }, { disconnectRate: 1 }, { dropRate: 1 }].entries()) {
    mock.onMessage(`chaos ${n}`, { content: 'never' }, { chaos });
    await siskin.send(tab.id, `chaos ${n}`);
    await siskin.idle(tab.id, 40_000);
    const turn = await siskin.lastTurn(tab.id);
    assert.ok(['error', 'cut'].includes(turn.stopReason), `${JSON.stringify(chaos)}: ${turn.stopReason}`);
    const last = (await siskin.log(tab.id)).at(-1);
    assert.equal(last.type, 'error');
    assert.ok(last.data.message.length > 10 && !/undefined|panick/.test(last.data.message));
    assert.equal((await siskin.turn(tab.id, 'fine')).stopReason, 'end');
  }
};

both('drops, rubbish and disconnects end in one clear error', chaotic, { budget: { attempts: 2 } });
