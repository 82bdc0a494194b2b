/** A tool call: one compact line, opening to its arguments and its output. */

import { joined, tellingArgument, toolState } from '../core/group.js';
import { size, span } from '../core/format.js';
import { S } from '../core/strings.js';
import { copyButton } from './buttons.js';
import { h, setText } from './dom.js';
import { icon, toolIcon } from './icons.js';
import { opening } from './item.js';

/** More of an argument is of no use in one line. */
const ARGUMENT_CHARS = 200;

/** @param {import('../core/group.js').Item} item @param {import('./item.js').Surroundings} around */
export function toolItem(item, around) {
  const first = item.rows[0] || item.results[0];
  const name = h('span', { class: 'name' }, first.data.name);
  const argument = h('span', { class: 'argument' });
  const state = h('span', { class: 'state' });
  let now = item;
  const line = opening(
    item.key,
    'item tool',
    [toolIcon(first.data.name), name, argument, state],
    fill,
    around,
  );
  let body = null;
  function fill(into) {
    if (!into.firstChild) {
      body = toolBody(around);
      into.append(body.node);
    }
    body.update(now);
  }
  return {
    node: line.node,
    update(next) {
      now = next;
      setText(
        argument,
        tellingArgument(first.data.name, joined(next.rows, 'arguments')).slice(0, ARGUMENT_CHARS),
      );
      showState(line.node, state, toolState(next));
      line.show();
    },
  };
}

function showState(node, into, { state, ms, exitCode }) {
  const signature = `${state} ${ms} ${exitCode}`;
  if (into.dataset.shown === signature) return;
  into.dataset.shown = signature;
  node.dataset.state = state;
  const word = {
    writing: S.toolWriting,
    running: S.toolRunning,
    cut: S.toolCut,
    none: S.toolNone,
    done: ms === undefined ? S.toolDone : span(ms),
    failed: exitCode ? S.toolExit(exitCode) : S.toolFailed,
  }[state];
  const mark = { done: icon('check'), failed: icon('cross') }[state];
  const busy = state === 'writing' || state === 'running';
  into.replaceChildren(mark || (busy ? h('i', { class: 'spin' }) : ''), word);
}

function toolBody(around) {
  const given = h('div', { class: 'given' });
  const output = h('pre', { class: 'output', tabIndex: 0 });
  output.append(document.createTextNode(''));
  const foot = h('div', { class: 'tool-foot' });
  const node = h('div', {}, given, output, foot);
  let shown = '';
  let footFor = '';
  return {
    node,
    update(item) {
      const json = joined(item.rows, 'arguments');
      if (json !== shown || !given.firstChild) given.replaceChildren(...showArguments(item, json));
      shown = json;
      showOutput(output, item);
      const last = item.results[item.results.length - 1];
      const ended = last && last.data.isError !== undefined ? String(last.seq) : '';
      if (ended && footFor !== ended) foot.replaceChildren(...showFoot(item, last, output, around));
      footFor = ended;
    },
  };
}

/** @returns {HTMLElement[]} */
function showArguments(item, json) {
  if (!item.rows.length) return [h('p', { class: 'dim' }, S.toolOrphan)];
  if (item.rows[item.rows.length - 1].data.cut) return [h('p', { class: 'dim' }, S.toolCutWhy), raw(json)];
  let all;
  try {
    all = Object.entries(JSON.parse(json || '{}'));
  } catch {
    return [raw(json)];
  }
  if (!all.length) return [];
  if (item.rows[0].data.name === 'edit_file') return showEdit(Object.fromEntries(all));
  return all.map(([key, value]) => {
    const text = typeof value === 'string' ? value : JSON.stringify(value);
    return h('div', { class: 'pair' }, h('span', { class: 'key' }, key), h('pre', { tabIndex: 0 }, text));
  });
}

function raw(json) {
  return h('pre', { tabIndex: 0 }, json);
}

/** @returns {HTMLElement[]} what an edit takes away and what it puts there */
function showEdit({ path, old, new: fresh }) {
  const lines = (text, mark, kind) =>
    String(text ?? '')
      .split('\n')
      .map((one) => h('span', { class: kind }, `${mark} ${one}\n`));
  return [
    h('div', { class: 'pair' }, h('span', { class: 'key' }, 'path'), h('pre', {}, String(path ?? ''))),
    h('pre', { class: 'diff', tabIndex: 0 }, ...lines(old, '−', 'gone'), ...lines(fresh, '+', 'came')),
  ];
}

function showOutput(output, item) {
  const text = joined(item.results, 'result');
  const ended = item.results.some((row) => row.data.isError !== undefined);
  output.hidden = !item.results.length;
  const failed = ended && item.results[item.results.length - 1].data.isError;
  output.classList.toggle('failed', !!failed);
  const node = output.firstChild;
  const shown = text || (ended ? S.toolNoOutput : '');
  const atEnd = output.scrollHeight - output.clientHeight - output.scrollTop < 4;
  if (shown.startsWith(node.data)) node.appendData(shown.slice(node.data.length));
  else node.data = shown;
  // While it runs the newest lines are what matters.
  if (!ended && atEnd) output.scrollTop = output.scrollHeight;
}

/** @returns {HTMLElement[]} */
function showFoot(item, last, output, around) {
  const parts = [copyButton(() => output.textContent)];
  const { truncated } = last.data;
  if (!truncated) return parts;
  const note = h('span', { class: 'dim' }, S.truncated(size(truncated.bytes)));
  const button = h('button', { class: 'quiet', type: 'button' }, S.showAll);
  let offset = 0;
  // The whole may be far larger than a page should hold: one part at a time takes the place of the one
  // before.
  button.addEventListener('click', async () => {
    button.disabled = true;
    try {
      const page = await around.session.api.get(
        `/api/tabs/${around.session.current}/results/${last.seq}?offset=${offset}`,
      );
      output.firstChild.data = page.text;
      output.scrollTop = 0;
      setText(note, S.fullPage(size(page.offset), size(page.nextOffset ?? page.bytes), size(page.bytes)));
      offset = page.nextOffset ?? 0;
      setText(button, page.nextOffset ? S.nextPage : S.showAll);
    } catch (error) {
      setText(note, S.failed(error.message));
    }
    button.disabled = false;
  });
  return [...parts, note, button];
}
