/**
 * How well a provider's cache served: the requests of turns, as `GET …/turns` tells them, and why a hit was
 * lost. Pure; loaded when somebody looks.
 */

import { hitRate, span } from './format.js';
import { L } from './strings-later.js';

/**
 * @typedef {{turnId:string, ordinal:number, startedAt:number, steps:any[]}} Turn
 * @typedef {object} Request
 * @property {Turn} turn
 * @property {number} no  within its turn, from 1
 * @property {boolean} compaction  asked for a summary
 * @property {string} model
 * @property {number} fresh  tokens sent that the provider had to read anew
 * @property {number} read  tokens from its cache
 * @property {number} written  tokens put into its cache
 * @property {number} out
 * @property {number|null} rate  share of what was sent that came from the cache
 * @property {string} cause  why a hit was lost, as a sentence; empty if none was
 */

/** @param {Turn[]} turns @returns {Request[]} in their order */
export function requestsOf(turns) {
  return turns.flatMap((turn) => turn.steps.map((step, at) => request(turn, step, at + 1)));
}

/** @returns {Request} */
function request(turn, step, no) {
  const { input = 0, cacheRead = 0, cacheWrite = 0, output = 0 } = step.usage || {};
  return {
    turn,
    no,
    compaction: !!step.compaction,
    model: step.model,
    fresh: input,
    read: cacheRead,
    written: cacheWrite,
    out: output,
    rate: hitRate({ input, cacheRead, cacheWrite }),
    cause: because(step.prefix && step.prefix.missCause),
  };
}

/** @param {string} [code]  of the protocol, such as `ttl: 734 s` @returns {string} a plain sentence */
export function because(code) {
  if (!code) return '';
  const colon = code.indexOf(':');
  const [name, detail] = colon < 0 ? [code, ''] : [code.slice(0, colon), code.slice(colon + 1).trim()];
  if (!Object.hasOwn(L.misses, name)) return L.missOther(code);
  const words = L.misses[name];
  if (typeof words === 'string') return words;
  const seconds = /^(\d+) s$/.exec(detail);
  return words(seconds ? span(seconds[1] * 1000) : detail);
}

/**
 * @param {Request[]} requests
 * @returns {{sent:number, rate:number|null, out:number}} of all of them together
 */
export function together(requests) {
  const sum = { input: 0, cacheRead: 0, cacheWrite: 0 };
  let out = 0;
  for (const one of requests) {
    sum.input += one.fresh;
    sum.cacheRead += one.read;
    sum.cacheWrite += one.written;
    out += one.out;
  }
  return { sent: sum.input + sum.cacheRead + sum.cacheWrite, rate: hitRate(sum), out };
}

/**
 * Finds one turn among many without reading them all: ordinals have no gaps, and first seqs grow with them.
 * @param {(query: string) => Promise<{turns: Turn[]}>} ask  `GET …/turns`
 * @param {string} turnId @param {number} seq  of one of its rows
 * @returns {Promise<Turn|undefined>}
 */
export async function findTurn(ask, turnId, seq) {
  let { turns } = await ask('limit=8');
  const found = () => turns.find((turn) => turn.turnId === turnId);
  let low = 1;
  let high = turns.length ? turns[0].ordinal - 1 : 0;
  while (!found() && low <= high) {
    const middle = Math.ceil((low + high) / 2);
    ({ turns } = await ask(`limit=1&before=${middle + 1}`));
    if (!turns.length) return undefined;
    if (turns[0].firstSeq > seq) high = middle - 1;
    else low = middle + 1;
  }
  return found();
}
