// A conversation that outgrows the real model's context, over each wire: it is shortened once by a summary
// that the model writes, and goes on. One provider's context is told in the config, so the summary comes in
// time; the other's is not, so the model's server refuses, and its words have to be understood.

import assert from 'node:assert/strict';
import { Siskin, checkLog } from '../fixture.mjs';
import { Ending, providers, startModel, startRelay } from './model.mjs';
import { conversation, messageBytes, textIn, turn } from './turns.mjs';

const CONTEXT = 1024;
const FACT = 'My dog is called Bruno. Which animal is Bruno?';
const NEWS = [
  'wren builds its nest from moss and dry leaves, in a hole of an old wall or between the roots of a tree',
  'heron stands still in the shallow water for an hour, and waits for a fish or a frog to come near',
  'swift sleeps in the air, and comes to the ground only to lay its eggs under the roof of a high house',
  'robin sings in the winter, too, and defends its garden against every other robin that comes',
  'dipper walks on the ground of the brook, against the stream, and turns the stones for larvae',
  'stork flies to the south in August, over land and in warm air, because it cannot glide over the sea',
  'owl hears the mouse under the snow, turns its head without moving its wings, and falls without a sound',
  'crane calls so loud that one hears it from five kilometres away, and dances with its mate in spring',
];
const AFTER = ['What is the name of my dog?', 'What is the capital of France?'];
const WIRES = [
  ['chat', '/v1/chat/completions', `context_tokens = ${CONTEXT}, told in the config`],
  ['messages', '/v1/messages', 'its context not told: the model server refuses one request'],
];

/** A text of some length, to be read and not to be remembered. */
const tale = (news) => `Here is what I read: the ${news}. ${`The ${news}. `.repeat(4)}Which bird is it?`;

const compacted = (rows) => rows.filter(({ role, data }) => role === 'system' && data.kind === 'compacted');

async function outgrow(siskin, relay, wire) {
  const tab = (await siskin.newTab({ model: `${wire}/gemma-3-270m` })).id;
  relay.requests.length = 0;
  const peer = await siskin.peer();
  await peer.open(tab);
  const turns = [];
  const say = async (question) => {
    const from = relay.requests.length;
    const done = await turn(siskin, peer, tab, question);
    const { steps } = await siskin.lastTurn(tab);
    turns.push({ ...done, steps, requests: relay.requests.slice(from) });
  };
  await say(FACT);
  for (const news of NEWS) {
    await say(tale(news));
    if (compacted(await siskin.log(tab)).length) break;
  }
  for (const question of AFTER) await say(question);
  peer.drop();
  return { tab, turns, rows: await siskin.log(tab) };
}

/** Tokens that the model's server counted for a step's request. */
const asked = ({ usage }) => usage.input + usage.cacheRead + usage.cacheWrite;

function check({ turns, rows }, route, refuses) {
  assert.equal(checkLog(rows).size, 0);
  const [row, ...more] = compacted(rows);
  assert.ok(row, 'the conversation was shortened');
  assert.equal(more.length, 0, 'and only once');
  const at = turns.findIndex(({ steps }) => steps.some(({ compaction }) => compaction));
  const { requests, steps } = turns[at];
  const taken = requests.filter(({ status }) => status === 200);
  const refused = turns.flatMap((turn) => turn.requests).filter(({ status }) => status !== 200);
  assert.equal(refused.length, refuses ? 1 : 0, 'requests refused');
  assert.ok(refused.every(({ status }) => status === 400) && requests.includes(refused[0] ?? requests[0]));
  assert.ok(turns.every((turn) => turn.requests.every(({ path }) => path === route)));
  assert.equal(taken.length, 2, 'a request for the summary, and the one after it');

  const [summary, after] = taken;
  const before = turns[at - 1].requests.at(-1);
  assert.ok(
    conversation(before.text).startsWith(conversation(summary.text, { last: false })),
    'the request for the summary begins as the one before it, byte for byte',
  );
  const asks = steps.find(({ compaction }) => compaction);
  assert.ok(asks.usage.cacheRead > 0, 'and is read from the cache');
  assert.deepEqual(JSON.parse(summary.text).system, JSON.parse(before.text).system);

  const first = JSON.parse(after.text).messages.find(({ role }) => role === 'user');
  const opening = 'The conversation before this was replaced by this summary of it:\n\n';
  assert.ok(textIn(first).startsWith(opening + row.data.text), 'the next request begins with the summary');
  const answered = steps.at(-1);
  assert.equal(answered.prefix.missCause, 'compaction');
  assert.ok(asked(answered) < asked(turns[at - 1].steps.at(-1)), 'and is shorter than the one before');
  turns.slice(at + 1).reduce((last, { requests: [now] }) => {
    assert.ok(messageBytes(now.text).startsWith(messageBytes(last.text)), 'and the next begin with it');
    return now;
  }, after);
  assert.ok(turns.slice(at + 1).every((turn) => turn.steps[0].usage.cacheRead > 0));
  return { row, at };
}

const quote = (text) => `> ${text.trim().replaceAll('\n', '\n> ')}`;
const brief = (text) => (text.length > 100 ? `${text.slice(0, 97).trim()}…` : text);

function print(turns, { row, at }, route, how) {
  console.log(`\n## A conversation longer than the context: ${route}\n`);
  console.log(`${CONTEXT} tokens; ${how}.\n`);
  turns.forEach(({ question, answer }, number) => {
    if (number === at) {
      console.log(`(Here it is shortened. The model's summary of rows 1 to ${row.data.upto}:)\n`);
      console.log(`\`\`\`\n${row.data.text}\n\`\`\`\n`);
    }
    console.log(`${quote(brief(question))}\n\n${answer.trim()}\n`);
  });
  console.log('| turn | request | answered | bytes | tokens in (cached) | out | cache missed by |');
  console.log('|---|---|---|---|---|---|---|');
  turns.forEach(({ requests, steps }, number) => {
    let step = 0;
    for (const { status, text } of requests) {
      const { usage, prefix, compaction } = status === 200 ? steps[(step += 1) - 1] : {};
      const tokens = usage
        ? `${asked({ usage })} (${usage.cacheRead}) | ${usage.output} | ${prefix.missCause ?? ''}`
        : '| |';
      const kind = compaction ? 'for a summary' : 'for an answer';
      console.log(`| ${number + 1} | ${kind} | ${status} | ${text.length} | ${tokens} |`);
    }
  });
}

const ending = new Ending();
try {
  const relay = await startRelay(ending, await startModel(ending, CONTEXT));
  const siskin = await Siskin.start(ending, {
    tables: providers(relay.url, { chat: `context_tokens = ${CONTEXT}` }),
    config: 'default_model = "chat/gemma-3-270m"',
  });
  for (const [wire, route, how] of WIRES) {
    const talk = await outgrow(siskin, relay, wire);
    print(talk.turns, check(talk, route, wire === 'messages'), route, how);
  }
} finally {
  await ending.end();
}
