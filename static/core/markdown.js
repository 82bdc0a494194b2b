/**
 * Markdown → a tree of allowed elements. Safe by construction: what is not named here does not exist, text
 * stays text, and no HTML is ever made or parsed.
 *
 * Raw HTML is shown as it was written. Links go to http, https and mailto only. Pictures are never loaded:
 * they become links that say so, since a picture's address can carry away what the model read.
 */

import { lexer } from '../vendor/marked.js';

/**
 * @typedef {string | {tag:string, kids:Node[], href?:string, lang?:string, align?:string, start?:number,
 *   checked?:boolean, image?:boolean}} Node
 * @typedef {{raw:string, node:Node}} Block
 */

/** Deeper nesting than this is shown flat. */
const DEPTH_MAX = 24;

const ENTITIES = {
  amp: '&',
  lt: '<',
  gt: '>',
  quot: '"',
  apos: "'",
  nbsp: '\u00a0',
  copy: '©',
  reg: '®',
  trade: '™',
  hellip: '…',
  mdash: '—',
  ndash: '–',
  lsquo: '‘',
  rsquo: '’',
  ldquo: '“',
  rdquo: '”',
  bull: '•',
  middot: '·',
  deg: '°',
  plusmn: '±',
  times: '×',
  divide: '÷',
  larr: '←',
  uarr: '↑',
  rarr: '→',
  darr: '↓',
  le: '≤',
  ge: '≥',
  ne: '≠',
  asymp: '≈',
  micro: 'µ',
  euro: '€',
  pound: '£',
  sect: '§',
  para: '¶',
  laquo: '«',
  raquo: '»',
  frac12: '½',
  infin: '∞',
  check: '✓',
  cross: '✗',
};

/** @param {string} text */
function decode(text) {
  return text.replace(
    /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([A-Za-z]\w{1,8}));/g,
    (whole, dec, hex, name) => {
      if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : whole;
      const code = dec ? parseInt(dec, 10) : parseInt(hex, 16);
      return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff)
        ? String.fromCodePoint(code)
        : '\ufffd';
    },
  );
}

/** @param {string} href @returns {string|null} the address, if it is one that may be followed */
export function safeHref(href) {
  const address = decode(href).trim();
  if (/[\u0000-\u0020\u007f\\]/.test(address)) return null;
  try {
    const url = new URL(address);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** @param {any[]} tokens @param {number} depth @returns {Node[]} */
function inline(tokens, depth) {
  return (tokens || []).map((token) => inlineNode(token, depth)).filter((node) => node !== '');
}

function inlineNode(token, depth) {
  if (depth > DEPTH_MAX) return token.raw;
  const kids = () => inline(token.tokens, depth + 1);
  switch (token.type) {
    case 'text':
      return token.tokens ? { tag: 'span', kids: kids() } : decode(token.text);
    case 'escape':
      return token.text;
    case 'strong':
      return { tag: 'strong', kids: kids() };
    case 'em':
      return { tag: 'em', kids: kids() };
    case 'del':
      return { tag: 'del', kids: kids() };
    case 'codespan':
      return { tag: 'code', kids: [token.text] };
    case 'br':
      return { tag: 'br', kids: [] };
    case 'checkbox':
      return { tag: 'input', kids: [], checked: token.checked };
    case 'html':
      return /^<br\s*\/?>$/i.test(token.raw) ? { tag: 'br', kids: [] } : token.raw;
    case 'link':
      return link(token.href, kids(), token.raw);
    case 'image':
      return image(token);
    default:
      return token.raw;
  }
}

function link(href, kids, raw) {
  const safe = safeHref(href);
  return safe ? { tag: 'a', href: safe, kids } : raw;
}

function image(token) {
  const safe = safeHref(token.href);
  if (!safe) return token.raw;
  return { tag: 'a', href: safe, image: true, kids: [decode(token.text) || safe] };
}

/** @param {any[]} tokens @param {number} depth @returns {Node[]} */
function blockNodes(tokens, depth) {
  return tokens.map((token) => blockNode(token, depth)).filter((node) => node !== null);
}

/** @returns {Node|null} */
function blockNode(token, depth) {
  if (depth > DEPTH_MAX) return { tag: 'p', kids: [token.raw] };
  switch (token.type) {
    case 'space':
    case 'def':
      return null;
    case 'heading':
      return { tag: `h${token.depth}`, kids: inline(token.tokens, depth) };
    case 'paragraph':
      return { tag: 'p', kids: inline(token.tokens, depth) };
    case 'text':
      return { tag: 'span', kids: token.tokens ? inline(token.tokens, depth) : [decode(token.text)] };
    case 'code':
      return { tag: 'pre', lang: (token.lang || '').split(/\s/)[0], kids: [token.text] };
    case 'blockquote':
      return { tag: 'blockquote', kids: blockNodes(token.tokens, depth + 1) };
    case 'hr':
      return { tag: 'hr', kids: [] };
    case 'list':
      return list(token, depth);
    case 'table':
      return table(token, depth);
    case 'checkbox':
      return inlineNode(token, depth);
    default:
      return { tag: 'p', kids: [token.raw.trimEnd()] };
  }
}

function list(token, depth) {
  const kids = token.items.map((item) => ({ tag: 'li', kids: blockNodes(item.tokens, depth + 1) }));
  if (!token.ordered) return { tag: 'ul', kids };
  return { tag: 'ol', kids, start: typeof token.start === 'number' ? token.start : 1 };
}

function table(token, depth) {
  const line = (tag, cells) => ({
    tag: 'tr',
    kids: cells.map((cell) => ({ tag, align: cell.align || undefined, kids: inline(cell.tokens, depth) })),
  });
  const head = { tag: 'thead', kids: [line('th', token.header)] };
  const body = { tag: 'tbody', kids: token.rows.map((row) => line('td', row)) };
  return { tag: 'table', kids: [head, body] };
}

/** @param {string} text @param {{fence?:string, lang?:string}} [md]  what it starts inside of */
function whole(text, md) {
  const plain = text.replace(/\r\n?/g, '\n');
  return md && md.fence ? `${md.fence}${md.lang || ''}\n${plain}` : plain;
}

/** @param {string} source @returns {Block[]} */
function lex(source) {
  try {
    return lexer(source, { gfm: true }).map((token) => ({ raw: token.raw, node: blockNode(token, 0) }));
  } catch {
    // Nesting that exhausts the parser; the text itself is still worth showing.
    return [{ raw: source, node: { tag: 'pre', lang: '', kids: [source] } }];
  }
}

const TICK = '\u0060';

const shown = (all) => all.filter((block) => block.node !== null);

/**
 * @param {string} text  one row's Markdown
 * @param {{fence?:string, lang?:string}} [md]  what it starts inside of
 * @returns {Block[]} its top-level blocks; `raw` tells whether a block is still the same as before
 */
export function blocks(text, md) {
  return shown(lex(whole(text, md)));
}

/**
 * Blocks at the end that more text can still change: a paragraph may become a heading, a list go on after a
 * blank line.
 */
const UNSETTLED = 3;

/**
 * The same for a text that grows: what more text cannot change is not read again, so that the work per
 * frame does not grow with the text. (A link's definition far below is the exception; the sealed row is
 * read as a whole.)
 */
export class GrowingBlocks {
  /** @param {{fence?:string, lang?:string}} [md] */
  constructor(md) {
    this.md = md;
    this.settled = [];
    this.source = '';
    this.offset = 0;
  }

  /** @param {string} text  all of it, as it is now @returns {Block[]} */
  blocks(text) {
    const source = whole(text, this.md);
    if (!source.startsWith(this.source.slice(0, this.offset))) this.settled = [];
    if (!this.settled.length) this.offset = 0;
    this.source = source;
    const tail = lex(source.slice(this.offset));
    while (tail.length > UNSETTLED && source.startsWith(tail[0].raw, this.offset)) {
      const block = tail.shift();
      this.offset += block.raw.length;
      this.settled.push(block);
    }
    return shown(this.settled.concat(tail));
  }
}

/**
 * A text that still grows, with the code or bold that its last line has begun closed, so that nobody sees
 * marks come and go. Inside of a fence marks are text.
 * @param {string} text @param {{fence?:string}} [md]  what it starts inside of
 */
export function completed(text, md) {
  const fences = (text.match(/^ {0,3}([~\u0060])\1\1/gm) || []).length + (md && md.fence ? 1 : 0);
  if (fences % 2) return text;
  const line = text.slice(text.lastIndexOf('\n') + 1).replace(/\u0060[^\u0060]+\u0060/g, '');
  if (line.split(TICK).length === 2) return text.endsWith(TICK) ? text.slice(0, -1) : text + TICK;
  if (line.split('**').length % 2) return text;
  const begun = text.replace(/(\*+|\s+)$/, '');
  return line.endsWith('**') ? begun : `${begun}**`;
}
