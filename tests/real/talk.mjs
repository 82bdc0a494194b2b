// Three turns with a real model over each wire, with Siskin restarted or killed before the third; prints the
// transcript and figures.

import assert from 'node:assert/strict';
import { Siskin, checkLog, textOf } from '../fixture.mjs';
import { Ending, providers, startModel, startRelay } from './model.mjs';
import { messageBytes, turn } from './turns.mjs';

const QUESTIONS = [
  'What is the capital of France?',
  'Which river flows through it?',
  'What is a router?',
];
const WIRES = [
  ['chat', '/v1/chat/completions', 'SIGTERM'],
  ['messages', '/v1/messages', 'SIGKILL'],
];

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
