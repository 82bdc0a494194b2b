// The vendor's prompt cache, simulated: what a Messages request would read, write and pay in full.
//
// Entries are written at marks only, by the request's own way to the marked block (tools, system, messages).
// A mark reads the longest entry at its own block or at one of the 19 before it. An entry lives for its TTL
// from the start of the request that wrote it, and each read begins that anew. Below the model's minimum
// nothing is written or read, and nothing is said. Tokens are bytes / 4.

import { createHash } from 'node:crypto';
import { canonical } from './strict/bindings.mjs';
import { takes } from './strict/families.mjs';
import { blockList, markList } from './strict/marks.mjs';

/** Block positions that a mark looks at, its own included. */
export const LOOKBACK = 20;
/** How many bodies a chat server remembers. */
const CHAT_TEXTS = 4;
const TTL_MS = { '5m': 300_000, '1h': 3_600_000 };

/** One account's cache. `minimum`: tokens below which nothing is cached, for models of no known family. */
export class Cache {
  #entries = new Map();
  #texts = [];
  /** How much later it is here than elsewhere, in ms. */
  aheadMs = 0;

  constructor({ minimum = 256, clock = Date.now } = {}) {
    this.minimum = minimum;
    this.clock = clock;
  }

  /** Lets time pass. */
  pass(ms) {
    this.aheadMs += ms;
  }

  /**
   * A request that is being answered: `{input, cacheRead, cacheWrite, hourly, blocks, reads, writes}`. The
   * last three are block positions (counted from 1): of all blocks, up to which was read, and where entries
   * stand now.
   */
  use(body) {
    const now = this.clock() + this.aheadMs;
    const chain = links(body);
    const minimum = takes(body.model)?.minimum ?? this.minimum;
    const marked = markList(body).filter(({ at }) => at >= 0 && chain[at].tokens >= minimum);
    const found = marked.map(({ at }) => this.#lookBack(chain, at, now)).filter((at) => at >= 0);
    const read = found.length ? Math.max(...found) : -1;
    if (read >= 0) {
      const entry = this.#entries.get(chain[read].hash);
      entry.until = now + entry.ttl;
    }
    const tokens = (at) => (at < 0 ? 0 : chain[at].tokens);
    let written = read;
    let hourly = 0;
    for (const { at, ttl } of marked) {
      const known = this.#live(chain[at].hash, now);
      if (!known || known.ttl < TTL_MS[ttl])
        this.#entries.set(chain[at].hash, { ttl: TTL_MS[ttl], until: now + TTL_MS[ttl] });
      if (at <= written) continue;
      if (ttl === '1h') hourly += tokens(at) - tokens(written);
      written = at;
    }
    return {
      input: tokens(chain.length - 1) - tokens(written),
      cacheRead: tokens(read),
      cacheWrite: tokens(written) - tokens(read),
      hourly,
      blocks: chain.length,
      reads: read + 1,
      writes: marked.map(({ at }) => at + 1),
    };
  }

  /**
   * The same for chat completions, whose servers keep the beginning of what they saw by themselves: bytes
   * that a body shares with an earlier one are read, in pieces of 256.
   */
  useChat(text) {
    const shared = Math.max(0, ...this.#texts.map((known) => sharedLength(known, text)));
    this.#texts = [text, ...this.#texts].slice(0, CHAT_TEXTS);
    const read = Math.floor(shared / 256) * 64;
    return { input: Math.ceil(text.length / 4) - read, cacheRead: read, cacheWrite: 0 };
  }

  #live(hash, now) {
    const entry = this.#entries.get(hash);
    return entry && entry.until > now ? entry : undefined;
  }

  #lookBack(chain, from, now) {
    for (let at = from; at >= 0 && at > from - LOOKBACK; at -= 1)
      if (this.#live(chain[at].hash, now)) return at;
    return -1;
  }
}

/** What besides the blocks an entry of the messages depends on: thinking, effort and tool choice. */
export function shapeOf(body) {
  const { thinking, output_config: config, tool_choice: choice } = body;
  return JSON.stringify(canonical({ thinking, effort: config?.effort, choice: choice ?? 'auto' }));
}

function sharedLength(a, b) {
  let at = 0;
  while (at < a.length && a[at] === b[at]) at += 1;
  return at;
}

/** A body's blocks as a chain of hashes, each with the tokens up to its end. */
function links(body) {
  const out = [];
  let hash = body.model;
  let bytes = 0;
  let shaped = false;
  for (const { part, role, at, block } of blockList(body)) {
    if (part === 'messages' && !shaped) {
      hash += shapeOf(body);
      shaped = true;
    }
    const text = JSON.stringify(canonical(block));
    bytes += Buffer.byteLength(text);
    hash = createHash('sha256').update(`${hash}${part}${role}${at}${text}`).digest('base64');
    out.push({ hash, tokens: Math.ceil(bytes / 4) });
  }
  return out;
}
