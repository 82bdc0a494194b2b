// Why two requests do not begin alike: the first block that differs, and the row of the log that it came
// from.

import { blocks } from './body.mjs';

/** System rows that begin a generation: by nature a new prefix follows. */
const BEGINS = new Set(['model-changed', 'prompt-changed', 'tools-changed', 'compacted', 'thinking-dropped']);

/** Whether a row begins a generation. */
export const beginsGeneration = (row) => row.type === 'system' && BEGINS.has(row.data.kind);

/** The position of the first block of `before` that `next` does not have in its place; -1 if it has all. */
export function firstDifference(before, next) {
  return before.findIndex((block, at) => {
    if (next[at] === block) return false;
    // A user text that got no answer is continued by the next one in the same string, since roles must
    // alternate.
    const open = block.replace(/" \{\}$/, '');
    const goesOn = at === before.length - 1 && /^"user" "/.test(block) && next[at]?.startsWith(open);
    return !goesOn;
  });
}

/**
 * `null` if the blocks of body `before` are the first of `next`; else what differs, with the row by name.
 * `short`: `next` may end earlier, with a block of its own.
 */
export function prefixFault(before, next, rows, short = false) {
  const [all, b] = [blocks(before), blocks(next)];
  // Its own block; between a result and a text in the owner's role the assistant says a word.
  const own = /^"assistant" "Noted\." /.test(b.at(-2) ?? '') ? 2 : 1;
  const a = short ? all.slice(0, b.length - own) : all;
  const at = firstDifference(a, b);
  if (at < 0) return null;
  const offset = differsAt(a[at], b[at] ?? '');
  const row = rowAt(a[at], offset, rows) ?? rowAt(b[at] ?? '', offset, rows) ?? rowOfCall(a[at], rows);
  const near = row ? `row ${row.seq} (${row.type})` : nearest(a, at, rows);
  const show = (block) => JSON.stringify(block?.slice(Math.max(0, offset - 40), offset + 80) ?? null);
  return (
    `block ${at} of ${a.length} changed, at its character ${offset}: ${near}; ` +
    `was ${show(a[at])}, is ${show(b[at])}`
  );
}

function differsAt(a, b) {
  let at = 0;
  while (at < a.length && a[at] === b[at]) at += 1;
  return at;
}

const payload = ({ data }) => data.text ?? data.arguments ?? data.result ?? '';
const escaped = (text) => JSON.stringify(text).slice(1, -1);

/** The row whose text lies at `offset` of a block; the longest such, since a short one may lie anywhere. */
function rowAt(block, offset, rows) {
  let best;
  let length = 0;
  for (const row of rows) {
    let text = payload(row);
    if (text.length <= length) continue;
    for (let depth = 0; depth < 4; depth += 1, text = escaped(text)) {
      const found = block.indexOf(text);
      if (found < 0 || found > offset || found + text.length < offset) continue;
      best = row;
      length = text.length;
    }
  }
  return best;
}

function rowOfCall(block, rows) {
  return rows.find((row) => row.data.callId && block.includes(`"${row.data.callId}"`));
}

function nearest(list, at, rows) {
  if (/^(tool|system) /.test(list[at])) return `the ${/^\w+/.exec(list[at])[0]} of the frozen prefix`;
  for (let before = at - 1; before >= 0; before -= 1) {
    const row = rowAt(list[before], list[before].length - 8, rows) ?? rowOfCall(list[before], rows);
    if (row) return `after row ${row.seq} (${row.type})`;
  }
  return 'no row known';
}
