// Cache marks of a Messages request: how many, where, and in which order.

import { isObject } from './common.mjs';

/** The blocks of a body in the order in which they are rendered and hashed: tools, system, messages. */
export function blockList(body) {
  const out = (body.tools ?? []).map((block) => ({ part: 'tools', block }));
  const system = typeof body.system === 'string' ? [{ type: 'text', text: body.system }] : body.system;
  out.push(...(system ?? []).map((block) => ({ part: 'system', block })));
  (body.messages ?? []).forEach((message, at) => {
    const blocks = blocksOf(message);
    blocks.forEach((block) => out.push({ part: 'messages', role: message.role, at, block }));
  });
  return out;
}

/** A message's blocks, also if it has only a text. */
export function blocksOf(message) {
  return typeof message.content === 'string'
    ? [{ type: 'text', text: message.content }]
    : (message.content ?? []);
}

/** The positions that are marked, as `{at, ttl}`, the automatic one at the top level included. */
export function markList(body) {
  const list = blockList(body);
  const marked = list
    .map(({ block }, at) => ({ at, block, mark: block.cache_control }))
    .filter(({ mark }) => mark !== undefined && mark !== null);
  if (isObject(body.cache_control)) {
    const last = list.findLastIndex(({ block }) => !isThinking(block) && block.text !== '');
    if (!marked.some(({ at }) => at === last))
      marked.push({ at: last, block: list[last]?.block, mark: body.cache_control });
  }
  return marked
    .sort((a, b) => a.at - b.at)
    .map(({ at, block, mark }) => ({ at, block, ttl: mark.ttl ?? '5m', mark }));
}

export const isThinking = (block) => block?.type === 'thinking' || block?.type === 'redacted_thinking';

/** What is wrong with a body's cache marks. */
export function marksFault(body) {
  const marked = markList(body);
  if (marked.length > 4)
    return `A maximum of 4 blocks with cache_control may be provided. Found ${marked.length}.`;
  for (const { block, mark, ttl } of marked) {
    if (!isObject(mark) || mark.type !== 'ephemeral') return 'cache_control.type: unknown';
    if (Object.keys(mark).some((key) => !['type', 'ttl'].includes(key)))
      return 'cache_control: Extra inputs are not permitted';
    if (!['5m', '1h'].includes(ttl)) return "cache_control.ttl: Input should be '5m' or '1h'";
    if (isThinking(block)) return `${block.type}.cache_control: Extra inputs are not permitted`;
    if (block?.type === 'text' && !block.text) return 'cache_control cannot be set for empty text blocks';
  }
  const late = marked.findIndex(({ ttl }, n) => ttl === '1h' && marked[n - 1]?.ttl === '5m');
  if (late > 0) return "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block";
  const own = body.cache_control && (body.cache_control.ttl ?? '5m');
  if (own && marked.at(-1)?.ttl !== own)
    return 'cache_control: the last block has a mark with another ttl than the automatic one';
  return null;
}
