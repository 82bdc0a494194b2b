/** One item of a turn as elements: `{node, update(item)}`. Each kind keeps what did not change. */

import { joined } from '../core/group.js';
import { S } from '../core/strings.js';
import { exact, span } from '../core/format.js';
import { h, setText } from './dom.js';
import { icon } from './icons.js';
import { later } from './later.js';
import { showMarkdown } from './markdown.js';
import { toolItem } from './tool.js';

/** Longer messages of the owner are clipped until asked for. */
const LONG_TEXT = 1600;

/**
 * @typedef {object} Surroundings
 * @property {Set<string>} opened  keys of the items that the reader opened
 * @property {(node: HTMLElement, change: () => void) => void} hold
 * @property {(item: import('../core/group.js').Item) => void} again  sends what was asked once more
 * @property {() => void} compact
 * @property {import('../core/session.js').Session} session
 */

/** @param {import('../core/group.js').Item} item @param {Surroundings} around */
export function makeItem(item, around) {
  const made = KINDS[item.kind](item, around);
  made.node.dataset.key = item.key;
  made.update(item);
  return made;
}

/**
 * A line that opens.
 * @param {string} key @param {HTMLElement[]} line @param {(body: HTMLElement) => void} fill  called while
 *   open
 */
export function opening(key, className, line, fill, around) {
  const body = h('div', { class: 'body', id: `body-${key}`, hidden: true });
  const button = h(
    'button',
    { class: 'line', type: 'button', 'aria-controls': body.id, onclick: toggle },
    ...line,
    icon('chevron'),
  );
  const node = h('div', { class: className }, button, body);
  function show() {
    const open = around.opened.has(key);
    body.hidden = !open;
    button.setAttribute('aria-expanded', String(open));
    if (open) fill(body);
    else body.replaceChildren();
  }
  function toggle() {
    if (around.opened.has(key)) around.opened.delete(key);
    else around.opened.add(key);
    around.hold(node, show);
  }
  return { node, show };
}

function userItem(item, around) {
  const text = h('div', { class: 'said', dir: 'auto' });
  const node = h('div', { class: 'item user', role: 'group', 'aria-label': S.you }, text);
  const more = h('button', { class: 'quiet', type: 'button', onclick: toggle }, S.showAll);
  function toggle() {
    around.hold(node, () => {
      const clipped = text.classList.toggle('clipped');
      setText(more, clipped ? S.showAll : S.showLess);
    });
  }
  return {
    node,
    update(now) {
      const all = joined(now.rows, 'text');
      if (text.textContent === all) return;
      text.textContent = all;
      node.title = exact(now.rows[0].createdAt);
      if (all.length <= LONG_TEXT) return;
      text.classList.add('clipped');
      node.append(more);
    },
  };
}

function textItem(item) {
  const node = h('div', { class: 'item text md' });
  return {
    node,
    update(now) {
      node.classList.toggle('joined', now.joined);
      showMarkdown(node, now.rows[0], now.open);
    },
  };
}

function thinkingItem(item, around) {
  const word = h('span', { class: 'word' });
  let now = item;
  let seen = null;
  const line = opening(item.key, 'item think', [icon('think'), word], fill, around);
  function fill(body) {
    const last = now.rows[now.rows.length - 1];
    const text = joined(now.rows, 'text') || (last.data.redacted ? S.thoughtHidden : S.thoughtEmpty);
    if (!body.firstChild) {
      seen = h('div', { class: 'thoughts', dir: 'auto' }, '');
      seen.append(document.createTextNode(''));
      body.append(seen);
    }
    const node = seen.lastChild;
    // Appending keeps what the reader selected; a whole new text is the exception.
    if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
    else node.data = text;
  }
  return {
    node: line.node,
    update(next) {
      now = next;
      const last = next.rows[next.rows.length - 1];
      const { ms, redacted } = last.data;
      line.node.classList.toggle('busy', next.open);
      setText(
        word,
        next.open ? S.thinking : redacted ? S.thoughtHidden : ms ? S.thoughtFor(span(ms)) : S.thought,
      );
      line.show();
    },
  };
}

function errorItem(item, around) {
  const title = h('strong', {});
  const message = h('p', { class: 'cause' });
  const hint = h('p', {});
  const again = deed('again', S.tryAgain, () => around.again(item));
  const buttons = h('div', { class: 'deeds' }, again);
  const node = h('div', { class: 'item error' }, icon('warn'), h('div', {}, title, message, hint, buttons));
  return {
    node,
    update(now) {
      const { data } = now.rows[0];
      setText(title, S.error);
      setText(message, data.message);
      // Until it is there, or if it does not come, the message itself has to do.
      later('meaning').then(
        (module) => show(module.meaning(data)),
        () => {},
      );
    },
  };
  function show(meant) {
    setText(title, meant.title || S.error);
    setText(hint, meant.hint);
    if (meant.compacts && buttons.children.length < 2)
      buttons.prepend(deed(null, S.compact, around.compact));
  }
}

function deed(mark, word, act) {
  const props = { class: 'plain', type: 'button', onclick: act };
  return h('button', props, mark && icon(mark), h('span', {}, word));
}

/** One dim line; that of a compaction opens to its summary. */
function systemItem(item, around) {
  const row = item.rows[0];
  const { kind, text } = row.data;
  if (kind !== 'compacted') {
    const node = h('p', { class: 'item system' }, text || S.kinds[kind] || kind);
    return { node: Object.assign(node, { title: exact(row.createdAt) }), update() {} };
  }
  const fill = (body) => {
    if (body.firstChild) return;
    const summary = h('div', { class: 'md' });
    showMarkdown(summary, row, false);
    body.append(summary);
  };
  const line = opening(item.key, 'item system', [h('span', {}, S.kinds.compacted)], fill, around);
  line.node.title = exact(row.createdAt);
  return { node: line.node, update: line.show };
}

const KINDS = {
  user: userItem,
  text: textItem,
  thinking: thinkingItem,
  tool: toolItem,
  error: errorItem,
  system: systemItem,
};
