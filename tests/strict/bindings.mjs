// Thinking that a provider gave out, and all that it is bound to: system, tools and the messages before it.

import { createHash } from 'node:crypto';
import { isObject } from './common.mjs';
import { blocksOf, isThinking } from './marks.mjs';

/** Thinking by signature. */
export class Bindings {
  #known = new Map();

  /** Remembers that `signature` was made in answer to `body`. */
  bind(signature, body) {
    this.#known.set(signature, {
      hash: prefixHash(body, body.messages),
      before: signatures(body.messages),
      model: body.model,
    });
  }

  /** Why the thinking block at `messages[at]` cannot stand there; `null` if it can. */
  fault(body, at, block) {
    const bound = this.#known.get(block.signature ?? block.data);
    if (!bound) return 'Invalid `signature` in `thinking` block';
    // The API would ignore it in silence, and it would be paid for.
    if (bound.model !== body.model)
      return `Invalid \`signature\` in \`thinking\` block: made by ${bound.model}`;
    const earlier = body.messages.slice(0, at);
    if (bound.hash !== prefixHash(body, earlier)) {
      return '`thinking` block: The block is bound to a different conversation';
    }
    const held = signatures(earlier);
    const suffix = bound.before.slice(bound.before.length - held.length);
    if (JSON.stringify(held) !== JSON.stringify(suffix)) {
      return 'The block is bound to a different conversation (thinking is missing before it)';
    }
    return null;
  }
}

function signatures(messages) {
  return messages.flatMap((message) =>
    blocksOf(message)
      .filter(isThinking)
      .map((b) => b.signature ?? b.data),
  );
}

/** The parts that were hashed already: a history is asked about once for each of its thinking blocks. */
const rendered = new WeakMap();

function render(message) {
  if (!rendered.has(message)) {
    const content = blocksOf(message).filter((block) => !isThinking(block));
    rendered.set(message, JSON.stringify(canonical({ role: message.role, content })));
  }
  return rendered.get(message);
}

/**
 * Values count, key order and marks do not; thinking is looked at on its own, since its removal has own
 * rules.
 */
function prefixHash(body, messages) {
  const hash = createHash('sha256');
  hash.update(JSON.stringify(canonical({ system: body.system ?? null, tools: body.tools ?? [] })));
  messages.forEach((message) => hash.update(render(message)));
  return hash.digest('hex');
}

/** A value without marks, its keys in one order. */
export function canonical(value) {
  if (Array.isArray(value)) return value.map(canonical);
  if (!isObject(value)) return value;
  const keys = Object.keys(value)
    .filter((key) => key !== 'cache_control')
    .sort();
  return Object.fromEntries(keys.map((key) => [key, canonical(value[key])]));
}
