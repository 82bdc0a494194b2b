// Rows → turns and items: keys hold while rows come and go, and calls find their results by id.
import assert from 'node:assert/strict';
import test from 'node:test';
import {
  answerText,
  askedText,
  joined,
  keyOf,
  project,
  signature,
  tellingArgument,
  toolState,
} from '../../static/core/group.js';
import { chance, row } from './helpers.mjs';

const call = (seq, callId, more = {}) =>
  row(seq, {
    type: 'tool_call',
    callId,
    name: 'shell',
    arguments: '{"command":"ls"}',
    block: seq,
    ...more,
  });
const result = (seq, callId, more = {}) =>
  row(seq, {
    type: 'tool_result',
    role: 'tool',
    callId,
    name: 'shell',
    result: `of ${callId}`,
    isError: false,
    ...more,
  });
const user = (seq, clientId, more = {}) => row(seq, { role: 'user', text: 'hi', clientId, ...more });
const items = (rows, open = null, live = null) => project(rows, open, live).flatMap((turn) => turn.items);

test('results find their calls by id, in whatever order they come', () => {
  const made = items([
    call(1, 'a'),
    call(2, 'b'),
    call(3, 'c'),
    result(4, 'c'),
    result(5, 'a'),
    result(6, 'b'),
  ]);
  assert.deepEqual(
    made.map((item) => [item.rows[0].data.callId, item.results[0].data.callId]),
    [
      ['a', 'a'],
      ['b', 'b'],
      ['c', 'c'],
    ],
  );
});

test('a result whose call is not held stands alone, under the same key', () => {
  const whole = items([call(1, 'a'), result(2, 'a')]);
  const orphan = items([result(2, 'a')]);
  assert.equal(orphan.length, 1);
  assert.equal(orphan[0].rows.length, 0);
  assert.equal(orphan[0].key, whole[0].key);
});

test('parts of a result and of a call are joined', () => {
  const made = items([
    call(1, 'a', { arguments: '{"command":' }),
    call(2, 'a', { arguments: '"ls"}', part: 1, block: 1 }),
    result(3, 'a', { isError: undefined, result: 'one ' }),
    result(4, 'a', { part: 1, result: 'two' }),
  ]);
  assert.equal(joined(made[0].rows, 'arguments'), '{"command":"ls"}');
  assert.equal(joined(made[0].results, 'result'), 'one two');
});

test('each text row is an item of its own, joined to the part before it', () => {
  const made = items([
    row(1, { block: 0 }),
    row(2, { block: 0, part: 1 }),
    row(3, { block: 1 }),
    row(4, { block: 2, part: 1 }),
  ]);
  assert.deepEqual(
    made.map((item) => item.joined),
    [false, true, false, false],
  );
  assert.deepEqual(
    items([row(2, { block: 0, part: 1 })]).map((item) => item.joined),
    [false],
    'its first part is evicted',
  );
});

test('thinking is one item a block, and keeps its key when its first part is evicted', () => {
  const parts = [1, 2, 3].map((seq) =>
    row(seq, { type: 'thinking', text: `${seq}`, block: 0, part: seq - 1 || undefined }),
  );
  assert.equal(items(parts).length, 1);
  assert.equal(items(parts.slice(1))[0].key, items(parts)[0].key);
  assert.equal(joined(items(parts)[0].rows, 'text'), '123');
});

test('equal blocks of two steps, or of two turns, are two items', () => {
  const think = (seq, step, turnId) => row(seq, { type: 'thinking', text: '', block: 0, step, turnId });
  assert.equal(items([think(1, 1, 'u1'), think(2, 2, 'u1'), think(3, 1, 'u2')]).length, 3);
});

test('a long message of the owner is one item over its parts', () => {
  const made = items([user(1, 'x', { text: 'a' }), user(2, 'x', { text: 'b', part: 1 }), user(3, 'y')]);
  assert.equal(made.length, 2);
  assert.equal(joined(made[0].rows, 'text'), 'ab');
});

test('turns follow their rows, and rows of no turn stand alone', () => {
  const turns = project(
    [
      user(1, 'x', { turnId: 'u1' }),
      row(2, { turnId: 'u1' }),
      row(3, { type: 'system', role: 'system', turnId: 'u0', kind: 'model-changed', text: 'm' }),
      row(4, { type: 'system', role: 'system', turnId: 'u0', kind: 'notice', text: 'n' }),
      user(5, 'y', { turnId: 'u2' }),
    ],
    null,
    'u2',
  );
  assert.deepEqual(
    turns.map((turn) => turn.key),
    ['u1', 'none:3', 'none:4', 'u2'],
  );
  assert.deepEqual(
    turns.map((turn) => turn.live),
    [false, false, false, true],
  );
});

test('the open chunk is the last row of its item, and sealing it keeps the key', () => {
  const open = row(2, { type: 'thinking', text: 'so', block: 0 });
  const [before] = items([], open, 'u1');
  const [after] = items([{ ...open }], null, 'u1');
  assert.equal(before.open, true);
  assert.equal(after.open, false);
  assert.equal(before.key, after.key);
  assert.notEqual(signature(before), signature(after));
});

test('a seq that is another row after a crash is another item, or shown anew', () => {
  const [before] = items([row(4)]);
  const [other] = items([row(4, { type: 'system', role: 'system', kind: 'interrupted', text: 'x' })]);
  assert.notEqual(before.key, other.key);
  const [later] = items([{ ...row(4), createdAt: 9 }]);
  assert.equal(before.key, later.key);
  assert.notEqual(signature(before), signature(later));
});

test('a tool is written, runs, ends, fails, is cut, or was left without a result', () => {
  const state = (rows, open, live) => toolState(items(rows, open, live)[0]).state;
  assert.equal(state([], call(1, 'a'), 'u1'), 'writing');
  assert.equal(state([call(1, 'a')], null, 'u1'), 'running');
  assert.equal(state([call(1, 'a')], result(2, 'a', { isError: undefined }), 'u1'), 'running');
  assert.equal(state([call(1, 'a'), result(2, 'a')], null, 'u1'), 'done');
  assert.equal(state([call(1, 'a'), result(2, 'a', { isError: true, exitCode: 1 })], null, null), 'failed');
  assert.equal(state([call(1, 'a', { cut: true })], null, null), 'cut');
  assert.equal(state([call(1, 'a')], null, null), 'none');
});

test('the most telling argument is shown, also while it is still coming in', () => {
  const check = (name, json, wanted) => assert.equal(tellingArgument(name, json), wanted, json);
  check('shell', '{"command":"uci show"}', 'uci show');
  check('shell', '{"timeoutS":5,"command":"uci sh', 'uci sh');
  check('shell', '{"command":"echo \\"a', 'echo "a');
  check('shell', '{"command":"a\\', 'a');
  check('shell', '{"com', '');
  check('shell', '{"command":7}', '');
  check('unknown', '{"n":1,"what":"this"}', 'this');
  check('system_info', '{}', '');
  check('system_info', '', '');
  check('shell', 'null', '');
});

test('what was said and asked in a turn can be copied and asked again', () => {
  const [turn] = project(
    [
      user(1, 'x', { text: 'why?' }),
      row(2, { block: 0, text: 'Because ' }),
      row(3, { block: 0, part: 1, text: 'so.' }),
      call(4, 'a'),
      result(5, 'a'),
      row(6, { block: 1, text: 'Done.' }),
    ],
    null,
    null,
  );
  assert.equal(answerText(turn), 'Because so.\n\nDone.');
  assert.equal(askedText(turn), 'why?');
});

test('every row is in exactly one item, and the keys of a turn are unique', () => {
  for (let seed = 1; seed <= 200; seed += 1) {
    const pick = chance(seed);
    const log = [];
    for (let seq = 1; seq <= 60; seq += 1) log.push(anyRow(pick, seq));
    const held = log.slice(pick(20), 60 - pick(20));
    const turns = project(held, null, null);
    const all = turns.flatMap((turn) => turn.items.flatMap((item) => [...item.rows, ...item.results]));
    assert.equal(all.length, held.length);
    assert.equal(new Set(all).size, held.length);
    for (const turn of turns) {
      assert.equal(new Set(turn.items.map((item) => item.key)).size, turn.items.length);
      for (const item of turn.items) {
        for (const one of [...item.rows, ...item.results]) assert.equal(keyOf(one), item.key);
      }
    }
  }
});

function anyRow(pick, seq) {
  const turnId = `u${1 + Math.floor(seq / 15)}`;
  const at = { turnId, step: 1 + Math.floor((seq % 15) / 5), block: pick(3), part: pick(2) };
  switch (pick(6)) {
    case 0:
      return user(seq, `c${pick(9)}${turnId}`, { turnId });
    case 1:
      return row(seq, { ...at, type: 'thinking', text: 't' });
    case 2:
      return call(seq, `k${pick(4)}${turnId}`, at);
    case 3:
      return result(seq, `k${pick(4)}${turnId}`, at);
    case 4:
      return row(seq, { turnId, type: 'system', role: 'system', kind: 'notice', text: 'n' });
    default:
      return row(seq, at);
  }
}
