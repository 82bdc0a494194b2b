// One turn with the real model, and what every turn and every request of it has to hold.

import assert from 'node:assert/strict';

/** The text of a frame that streams the answer. */
const streamed = (frame) =>
  frame.type === 'chunk-delta' || (frame.type === 'chunk-open' && frame.chunk.role === 'assistant');

/** Asks, and gives the answer with its seal and its times. */
export async function turn(siskin, peer, tab, question) {
  const from = peer.frames.length;
  const sealed = peer.sealed.length;
  const began = performance.now();
  await siskin.send(tab, question);
  await peer.turns(sealed + 1, 240_000);
  const frames = peer.frames.slice(from);
  const seal = peer.sealed.at(-1);
  const pieces = frames.filter(streamed);
  assert.ok(
    ['end', 'max_tokens'].includes(seal.stopReason),
    `the turn ended ${seal.stopReason}: ${JSON.stringify(seal)} ${JSON.stringify(frames.slice(-3))}`,
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

const unmarked = (text) => text.replaceAll(/,"cache_control":\{[^}]*\}/g, '');

/** A request's messages as bytes, cache marks aside, without the bracket that ends them. */
export function messageBytes(text) {
  const { messages } = JSON.parse(unmarked(text));
  const bytes = JSON.stringify(messages);
  assert.ok(unmarked(text).includes(bytes), 'the messages stand in the body as compact JSON');
  return bytes.slice(0, -1);
}

/** The same of a request's conversation alone: without a system message, and without its last message. */
export function conversation(text, { last = true } = {}) {
  const { messages } = JSON.parse(unmarked(text));
  const said = messages.filter(({ role }) => role !== 'system');
  return JSON.stringify(last ? said : said.slice(0, -1)).slice(0, -1);
}

/** The text of a message, whatever the wire. */
export const textIn = ({ content }) =>
  typeof content === 'string' ? content : content.map(({ text }) => text ?? '').join('');
