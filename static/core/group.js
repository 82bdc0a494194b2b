/**
 * Rows → turns → items, made anew whenever rows come or go: a pure projection, never stored.
 *
 * A text row is an item of its own, since each renders alone (`md` says what it starts inside of). Thinking
 * is one item a block, a tool call one item with all that bears its `callId`, wherever it stands; a result
 * whose call is not held stands alone. Keys come from seqs and ids, never from positions, so they hold
 * while rows come and go at both ends.
 */

/**
 * @typedef {import('./window.js').Row} Row
 * @typedef {object} Item
 * @property {string} key
 * @property {'user'|'text'|'thinking'|'tool'|'error'|'system'} kind
 * @property {Row[]} rows  in order; of a tool, its call's
 * @property {Row[]} results  of a tool
 * @property {boolean} joined  goes on from the item before it
 * @property {boolean} open  its last row is the open chunk
 * @property {boolean} live  its turn runs
 * @typedef {{key:string, turnId:string, live:boolean, items:Item[]}} Turn
 */

/** Rows of no turn bear this turn id. */
const NO_TURN = 'u0';

/** @param {Row} row @returns {string} the item that a row belongs to, unique in the tab */
export function keyOf(row) {
  const { data } = row;
  switch (row.type) {
    case 'tool_call':
    case 'tool_result':
      return `call:${data.callId}`;
    case 'thinking':
      return `think:${row.turnId}:${row.step}:${data.block}`;
    case 'text':
      return row.role === 'user' ? `user:${data.clientId}` : `row:${row.seq}`;
    default:
      // Not as a text: after a crash a seq may be another row's.
      return `${row.type}:${row.seq}`;
  }
}

/** @param {Row} row */
function kindOf(row) {
  if (row.type === 'text') return row.role === 'user' ? 'user' : 'text';
  if (row.type === 'tool_call' || row.type === 'tool_result') return 'tool';
  return row.type;
}

/** @returns {boolean} whether `row` continues the text block that `before` belongs to */
function continues(before, row) {
  return (
    !!before &&
    row.type === 'text' &&
    row.role === 'assistant' &&
    before.type === 'text' &&
    before.role === 'assistant' &&
    before.turnId === row.turnId &&
    before.step === row.step &&
    before.data.block === row.data.block &&
    !!row.data.part
  );
}

/**
 * @param {Row[]} rows @param {Row|null} open @param {string|null} liveTurn
 * @returns {Turn[]}
 */
export function project(rows, open, liveTurn) {
  /** @type {Turn[]} */
  const turns = [];
  /** @type {Map<string, Item>} */
  let items = new Map();
  let turn = null;
  let before = null;
  for (const row of open ? rows.concat([open]) : rows) {
    const turnKey = row.turnId === NO_TURN ? `none:${row.seq}` : row.turnId;
    if (!turn || turn.key !== turnKey) {
      turn = { key: turnKey, turnId: row.turnId, live: row.turnId === liveTurn, items: [] };
      turns.push(turn);
      items = new Map();
    }
    const key = keyOf(row);
    let item = items.get(key);
    if (!item) {
      const joined = continues(before, row);
      item = { key, kind: kindOf(row), rows: [], results: [], joined, open: false, live: turn.live };
      items.set(key, item);
      turn.items.push(item);
    }
    (row.type === 'tool_result' ? item.results : item.rows).push(row);
    item.open = row === open;
    before = row;
  }
  return turns;
}

/** @param {Row[]} rows @param {string} field @returns {string} the parts' text, joined */
export function joined(rows, field) {
  let text = '';
  for (const row of rows) text += row.data[field] || '';
  return text;
}

/** The argument that tells most, by tool. */
const TELLING = {
  shell: 'command',
  read_file: 'path',
  write_file: 'path',
  edit_file: 'path',
  list_files: 'path',
  search: 'query',
  http_get: 'url',
};

/**
 * The most telling argument of a call, also while its JSON is still coming in.
 * @param {string} name @param {string} json @returns {string}
 */
export function tellingArgument(name, json) {
  const wanted = TELLING[name];
  try {
    const all = JSON.parse(json);
    const value = wanted ? all[wanted] : Object.values(all).find((one) => typeof one === 'string');
    return typeof value === 'string' ? value : '';
  } catch {
    const field = wanted || '[A-Za-z_]+';
    const found = json.slice(0, 2048).match(new RegExp(`"${field}"\\s*:\\s*"((?:[^"\\\\]|\\\\.)*)`));
    if (!found) return '';
    try {
      return JSON.parse(`"${found[1]}"`);
    } catch {
      return '';
    }
  }
}

/**
 * How a tool's item stands.
 * @param {Item} item
 * @returns {{state:'writing'|'running'|'done'|'failed'|'cut'|'none', ms?:number, exitCode?:number}}
 */
export function toolState(item) {
  const call = item.rows[item.rows.length - 1];
  if (call && call.data.cut) return { state: 'cut' };
  const last = item.results[item.results.length - 1];
  if (last && last.data.isError !== undefined) {
    const { isError, ms, exitCode } = last.data;
    return { state: isError ? 'failed' : 'done', ms, exitCode };
  }
  if (!item.live) return { state: 'none' };
  return { state: item.open && !last ? 'writing' : 'running' };
}

/** What must be equal for an item's shown form to stay as it is. @param {Item} item */
export function signature(item) {
  const last = item.rows[item.rows.length - 1];
  const seqs = last ? `${item.rows[0].seq}-${last.seq}@${last.createdAt}` : '';
  return `${seqs}/${item.results.map((row) => row.seq).join()}/${item.open}/${item.live}/${item.joined}`;
}

/** @param {Turn} turn @returns {string} what the agent said in it, as Markdown, for copying */
export function answerText(turn) {
  let text = '';
  for (const item of turn.items) {
    if (item.kind === 'text') text += (item.joined || !text ? '' : '\n\n') + joined(item.rows, 'text');
  }
  return text;
}

/** @param {Turn} turn @returns {string} the last message of the owner in it */
export function askedText(turn) {
  const asked = turn.items.filter((item) => item.kind === 'user').pop();
  return asked && !asked.rows[0].data.part ? joined(asked.rows, 'text') : '';
}
