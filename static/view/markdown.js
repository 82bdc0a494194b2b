/**
 * The allowed tree of core/markdown.js as elements. A text that grows keeps all blocks but those that
 * changed.
 */

import { GrowingBlocks, blocks, completed } from '../core/markdown.js';
import { joined } from '../core/group.js';
import { S } from '../core/strings.js';
import { copyButton } from './buttons.js';
import { h } from './dom.js';

/** Blocks that read from the right if their text does. */
const DIRECTED = new Set(['p', 'ul', 'blockquote', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6']);

/** @param {import('../core/markdown.js').Node} node @returns {Node} */
function build(node) {
  if (typeof node === 'string') return document.createTextNode(node);
  if (node.tag === 'pre') return code(node);
  const kids = node.kids.map(build);
  switch (node.tag) {
    case 'a':
      return h(
        'a',
        { href: node.href, target: '_blank', rel: 'noopener noreferrer', class: node.image && 'picture' },
        node.image && S.picture,
        ...kids,
      );
    case 'input':
      return h('input', { type: 'checkbox', checked: node.checked, disabled: true });
    case 'ol':
      return h('ol', { dir: 'auto', start: node.start }, ...kids);
    case 'table':
      return h('div', { class: 'wide', tabIndex: 0 }, h('table', { dir: 'auto' }, ...kids));
    case 'th':
    case 'td':
      return h(node.tag, { class: node.align && `to-${node.align}` }, ...kids);
    default:
      return h(node.tag, { dir: DIRECTED.has(node.tag) && 'auto' }, ...kids);
  }
}

function code(node) {
  const text = node.kids[0];
  const head = h(
    'div',
    { class: 'code-head' },
    h('span', {}, node.lang || ''),
    copyButton(() => text),
  );
  return h('div', { class: 'code' }, head, h('pre', { tabIndex: 0 }, h('code', {}, text)));
}

/**
 * Shows one row's Markdown in `into`.
 * @param {HTMLElement & {raws?: string[], growing?: GrowingBlocks|null}} into
 * @param {import('../core/window.js').Row} row
 * @param {boolean} grows
 */
export function showMarkdown(into, row, grows) {
  const text = joined([row], 'text');
  into.growing = grows ? into.growing || new GrowingBlocks(row.data.md) : null;
  const now = into.growing ? into.growing.blocks(completed(text, row.data.md)) : blocks(text, row.data.md);
  const before = into.raws || [];
  let same = 0;
  while (same < now.length && same < before.length && now[same].raw === before[same]) same += 1;
  while (into.childNodes.length > same) into.lastChild.remove();
  for (const block of now.slice(same)) into.append(build(block.node));
  into.raws = now.map((block) => block.raw);
}
