// What two request bodies have in common, byte for byte: the list of a body's blocks, cut out of its raw
// text.
//
// JSON is cut and never parsed and rendered again, because that would hide exactly what a prefix cache sees.

import assert from 'node:assert/strict';

/** The end of the JSON value that begins at `at`. */
function valueEnd(text, at) {
  if (text[at] === '"') return stringEnd(text, at);
  if (text[at] !== '{' && text[at] !== '[') {
    let end = at;
    while (end < text.length && !',]}'.includes(text[end])) end += 1;
    return end;
  }
  let depth = 0;
  for (let end = at; end < text.length; end += 1) {
    const c = text[end];
    if (c === '"') end = stringEnd(text, end) - 1;
    else if (c === '{' || c === '[') depth += 1;
    else if (c === '}' || c === ']') {
      depth -= 1;
      if (depth === 0) return end + 1;
    }
  }
  throw new Error('unclosed JSON value');
}

function stringEnd(text, at) {
  for (let end = at + 1; end < text.length; end += 1) {
    if (text[end] === '\\') end += 1;
    else if (text[end] === '"') return end + 1;
  }
  throw new Error('unclosed JSON string');
}

/** The raw texts of an array's items. */
export function items(text) {
  assert.equal(text[0], '[');
  const out = [];
  let at = 1;
  while (text[at] !== ']') {
    const end = valueEnd(text, at);
    out.push(text.slice(at, end));
    at = text[end] === ',' ? end + 1 : end;
  }
  return out;
}

/** The raw texts of an object's values, by key. */
export function fields(text) {
  assert.equal(text[0], '{');
  const out = {};
  let at = 1;
  while (text[at] !== '}') {
    const colon = stringEnd(text, at);
    const end = valueEnd(text, colon + 1);
    out[JSON.parse(text.slice(at, colon))] = text.slice(colon + 1, end);
    at = text[end] === ',' ? end + 1 : end;
  }
  return out;
}

const MARK = /,?"cache_control":\{[^{}]*\}/g;

/** A body's blocks in the order in which a provider hashes them: tools, system, then each message's. */
export function blocks(raw) {
  const body = fields(raw);
  const out = [];
  if (body.tools) out.push(...items(body.tools).map((tool) => `tool ${tool}`));
  if (body.system) out.push(`system ${body.system}`);
  for (const message of items(body.messages)) {
    const { role, content, ...more } = fields(message);
    if (content?.[0] === '[') out.push(...items(content).map((block) => `${role} ${block}`));
    else out.push(`${role} ${content} ${JSON.stringify(more)}`);
  }
  return out.map((block) => block.replace(MARK, ''));
}

/** Asserts that the list of blocks of `next` begins with that of `before`, byte for byte, marks aside. */
export function assertPrefix(before, next) {
  const a = blocks(before);
  const b = blocks(next);
  a.forEach((block, at) => {
    // A user text that got no answer is continued by the next one in the same string, since roles must
    // alternate.
    if (at === a.length - 1 && b[at] !== block && /^"user" "/.test(block)) {
      const open = block.replace(/" \{\}$/, '');
      assert.equal(b[at]?.slice(0, open.length), open, 'the last user text changed');
      return;
    }
    assert.equal(b[at], block, `block ${at} of ${a.length} changed`);
  });
}
