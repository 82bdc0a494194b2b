// Three turns with a real model over each wire, with Siskin restarted or killed before the third; prints the
// transcript and figures.

import assert from 'node:assert/strict';
import { Siskin, checkLog, textOf } from '../fixture.mjs';
import { Ending, providers, startModel, startRelay } from './model.mjs';

const QUESTIONS = [
  'What is the capital of France?',
  'Which river flows through it?',
  'What is a router?',
];
const WIRES = [
  ['chat', '/v1/chat/completions', 'SIGTERM'],
  ['messages', '/v1/messages', 'SIGKILL'],
];

/** A request's messages as bytes, cache marks aside, without the bracket that ends them. */
function messageBytes(text) {
  const unmarked = text.replaceAll(/,"cache_control":\{[^}]*\}/g, '');
  const { messages } = JSON.parse(unmarked);
  const bytes = JSON.stringify(messages);
  assert.ok(unmarked.includes(bytes), 'the messages stand in the body as compact JSON');
  return bytes.slice(0, -1);
}

/** The text of a frame that streams the answer. */
const streamed = (frame) =>
  frame.type === 'chunk-delta' || (frame.type === 'chunk-open' && frame.chunk.role === 'assistant');

async function turn(siskin, peer, tab, question) {
  const from = peer.frames.length;
  const sealed = peer.sealed.length;
  const began = performance.now();
  await siskin.send(tab, question);
  await peer.turns(sealed + 1, 120_000);
  const frames = peer.frames.slice(from);
  const seal = peer.sealed.at(-1);
  const pieces = frames.filter(streamed);
  assert.ok(
    ['end', 'max_tokens'].includes(seal.stopReason),
    `the turn ended ${seal.stopReason}: ${JSON.stringify(seal)}`,
  );
  assert.ok(pieces.length > 1, 'the answer came in pieces');
  const answer = peer.text(seal.turnId);
  assert.ok(answer.trim().length > 0, 'the answer is not empty');
  assert.ok(
    seal.usage.output > 0 && seal.usage.input + seal.usage.cacheRead > 0,
    `usage: ${JSON.stringify(seal.usage)}`,
  );
  const ms = { first: pieces[0].at - began, all: performance.now() - began };
  return { question, answer, seal, pieces: pieces.length, ms };
}

async function talk(siskin, relay, wire, route, signal) {
  const tab = await siskin.newTab({ model: `${wire}/gemma-3-270m` });
  relay.requests.length = 0;
  const turns = [];
  let peer = await siskin.peer();
  await peer.open(tab.id);
  for (const [at, question] of QUESTIONS.entries()) {
    if (at === QUESTIONS.length - 1) {
      peer.drop();
      await siskin.signal(signal);
      await siskin.restart();
      peer = await siskin.peer();
      await peer.open(tab.id);
    }
    turns.push(await turn(siskin, peer, tab.id, question));
  }
  peer.drop();
  check(turns, relay.requests, route, await siskin.log(tab.id));
  print(route, turns, relay.requests, signal);
}

function check(turns, requests, route, rows) {
  assert.equal(requests.length, turns.length, 'one request a turn');
  requests.forEach((request, at) => {
    assert.equal(request.path, route);
    assert.equal(request.status, 200);
    if (at) {
      const [before, now] = [requests[at - 1], request].map(({ text }) => messageBytes(text));
      assert.ok(
        now.startsWith(before),
        `request ${at + 1} begins with request ${at}, byte for byte`,
      );
      assert.ok(
        turns[at].seal.usage.cacheRead > 0,
        'the model server reads what it has seen from its cache',
      );
    }
  });
  assert.equal(checkLog(rows).size, 0);
  assert.equal(
    textOf(rows),
    turns.map(({ answer }) => answer).join(''),
    'what was streamed is what is stored',
  );
  assert.match(turns[0].answer, /Paris/, 'it knows the capital');
  assert.match(turns[1].answer, /Seine/, 'it knows what "it" was');
}

function print(route, turns, requests, signal) {
  console.log(`\n## ${route}\n`);
  turns.forEach(({ question, answer }, at) => {
    if (at === turns.length - 1) console.log(`(Here Siskin gets ${signal} and is started again.)\n`);
    console.log(`> ${question}\n\n${answer.trim()}\n`);
  });
  console.log(
    '| turn | ended | request bytes | tokens in (cached) | out | pieces | first piece ms | whole ms |',
  );
  console.log('|---|---|---|---|---|---|---|---|');
  turns.forEach(({ seal, pieces, ms }, at) => {
    const { input, cacheRead, output } = seal.usage;
    console.log(
      `| ${at + 1} | ${seal.stopReason} | ${requests[at].text.length} ` +
        `| ${input + cacheRead} (${cacheRead}) | ${output} | ${pieces} ` +
        `| ${ms.first.toFixed(0)} | ${ms.all.toFixed(0)} |`,
    );
  });
}

const ending = new Ending();
try {
  const relay = await startRelay(ending, await startModel(ending));
  const siskin = await Siskin.start(ending, {
    tables: providers(relay.url),
    config: 'default_model = "chat/gemma-3-270m"',
  });
  for (const wire of WIRES) await talk(siskin, relay, ...wire);
  console.log(`\nSiskin's memory at the end: ${(siskin.rss() / 2 ** 20).toFixed(1)} MiB.`);
} finally {
  await ending.end();
}
