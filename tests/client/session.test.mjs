// The session: messages, tabs and faults, over a fake socket and a scripted API.
import assert from 'node:assert/strict';
import test from 'node:test';
import { ApiError } from '../../static/core/api.js';
import { Session } from '../../static/core/session.js';
import { Clock, Socket, row, rows, windowFrame } from './helpers.mjs';

const LIMITS = { chunkLimit: 40, byteLimit: 256 * 1024, chunkBytes: 16384, pageLimit: 20 };
const tab = (id, more = {}) => ({
  id,
  title: id,
  model: 'm/m',
  status: 'idle',
  total: 0,
  updatedAt: 1,
  archived: false,
  ...more,
});

class FakeApi {
  constructor() {
    this.calls = [];
    this.answer = async () => ({ status: 'started', turnId: 'u9' });
  }

  post(path, body) {
    this.calls.push({ path, body });
    return this.answer(path, body);
  }

  async delete(path) {
    this.calls.push({ path });
  }
}

function made(tabs = [tab('t1'), tab('t2')]) {
  const kept = { token: 'secret' };
  const clock = new Clock();
  const at = { clock, api: new FakeApi(), told: [], sockets: [] };
  at.session = new Session({
    api: at.api,
    storage: {
      get: (key) => kept[key] ?? null,
      set: (key, value) => {
        kept[key] = structuredClone(value);
      },
    },
    socket: () => {
      at.socket = new Socket();
      at.sockets.push(at.socket);
      return at.socket;
    },
    clock: clock.around,
  });
  at.session.on((what) => at.told.push(what));
  at.welcome = (more = {}) => {
    at.socket.onopen();
    at.socket.frame({
      type: 'welcome',
      epoch: 'e1',
      limits: { ...LIMITS },
      tabs,
      approvals: [],
      resumed: false,
      ...more,
    });
  };
  at.session.start();
  at.welcome();
  return at;
}

function shown(chunks = rows(1, 5)) {
  const at = made();
  at.session.show('t1');
  at.socket.frame(windowFrame('t1', chunks));
  return at;
}

const quiet = (run) => async () => {
  const { error } = console;
  console.error = () => {};
  try {
    await run();
  } finally {
    console.error = error;
  }
};

test('showing a tab opens it, and frames of other tabs do not touch it', () => {
  const at = shown();
  assert.equal(at.socket.frames('open')[0].tab, 't1');
  at.socket.frame({ type: 'chunk', tab: 't2', chunk: row(9), total: 9 });
  assert.equal(at.session.window.newest, 5);
});

test('a sent message stands for itself until its row comes, and exactly once after', async () => {
  const at = shown();
  const sending = at.session.send('hello');
  const [{ clientId }] = at.session.pending;
  assert.match(clientId, /^[A-Za-z0-9_-]{1,64}$/);
  at.socket.frame({ type: 'turn-start', tab: 't1', turnId: 'u9' });
  at.socket.frame({
    type: 'chunk',
    tab: 't1',
    chunk: row(6, { role: 'user', text: 'hello', clientId, turnId: 'u9' }),
    total: 6,
  });
  assert.equal(at.session.pending.length, 0);
  await sending;
  assert.equal(at.session.pending.length, 0, 'the row overtook the answer');
});

test('an answer before the row keeps the message until the row comes', async () => {
  const at = shown();
  await at.session.send('hello');
  const [{ clientId, state }] = at.session.pending;
  assert.equal(state, 'sent');
  at.socket.frame({
    type: 'chunk',
    tab: 't1',
    chunk: row(6, { role: 'user', text: 'hello', clientId }),
    total: 6,
  });
  assert.equal(at.session.pending.length, 0);
});

test('a row of another device is never taken for an own message', async () => {
  const at = shown();
  await at.session.send('hello');
  at.socket.frame({
    type: 'chunk',
    tab: 't1',
    chunk: row(6, { role: 'user', text: 'hello', clientId: 'other' }),
    total: 6,
  });
  assert.equal(at.session.pending.length, 1);
});

test('a queued message is shown once, whichever of event and answer comes first', async () => {
  for (const eventFirst of [true, false]) {
    const at = shown();
    at.api.answer = async () => ({ status: 'queued', messageId: 'm1' });
    const sending = at.session.send('later');
    const [{ clientId }] = at.session.pending;
    const event = { type: 'message-queued', tab: 't1', messageId: 'm1', clientId, text: 'later' };
    if (eventFirst) at.socket.frame(event);
    await sending;
    if (!eventFirst) at.socket.frame(event);
    const shownTimes = at.session.window.queue.length + at.session.pending.length;
    assert.equal(shownTimes, 1, `event first: ${eventFirst}`);
  }
});

test('a message consumed before its answer came does not stay queued', async () => {
  const at = shown();
  at.api.answer = async () => ({ status: 'queued', messageId: 'm1' });
  const sending = at.session.send('later');
  const [{ clientId }] = at.session.pending;
  at.socket.frame({ type: 'message-queued', tab: 't1', messageId: 'm1', clientId, text: 'later' });
  at.socket.frame({ type: 'message-consumed', tab: 't1', messageId: 'm1', clientId, seq: 6 });
  await sending;
  assert.equal(at.session.window.queue.length + at.session.pending.length, 0);
});

test('what could not be sent is sent again with the same id once the device is back', async () => {
  const at = shown();
  at.api.answer = async () => {
    throw new ApiError(0, 'unreachable', 'no answer');
  };
  await at.session.send('hello');
  assert.equal(at.session.pending[0].state, 'unsent');
  at.api.answer = async () => ({ status: 'started', turnId: 'u9' });
  at.socket.onclose({ code: 1006 });
  at.clock.go(1000);
  at.welcome();
  await Promise.resolve();
  const [first, second] = at.api.calls;
  assert.deepEqual(first, second);
});

test('a refused message says why and is not repeated by itself', async () => {
  const at = shown();
  at.api.answer = async () => {
    throw new ApiError(413, 'too_large', 'a message is at most 128 KiB');
  };
  await at.session.send('hello');
  assert.equal(at.session.pending[0].state, 'refused');
  assert.equal(at.session.pending[0].error, 'a message is at most 128 KiB');
  at.welcome();
  assert.equal(at.api.calls.length, 1);
});

test('the first message of a page without tabs makes one', async () => {
  const at = made([]);
  at.session.show(null);
  at.api.answer = async (path) => (path === '/api/tabs' ? tab('t7') : { status: 'started', turnId: 'u1' });
  await at.session.send('hello', { model: 'm/x', effort: 'low' });
  assert.deepEqual(at.api.calls[0].body, { model: 'm/x', effort: 'low' });
  assert.deepEqual(
    at.api.calls.map((call) => call.path),
    ['/api/tabs', '/api/tabs/t7/messages'],
  );
  assert.equal(at.session.current, 't7');
});

test('a reconnect says what is held, and the window that follows is not asked for', () => {
  const at = shown();
  at.socket.onclose({ code: 1006 });
  at.clock.go(1000);
  at.welcome({ resumed: true });
  const [hello] = at.socket.frames('hello');
  assert.deepEqual(hello.resume, { epoch: 'e1', tab: 't1', oldestSeq: 1, newestSeq: 5, following: true });
  assert.equal(at.socket.frames('open').length, 0);
  at.socket.frame(windowFrame('t1', rows(6, 7), { base: 'keep', total: 7 }));
  assert.equal(at.session.window.newest, 7);
});

test('a turn that ended while away is over after the reconnect', () => {
  const at = shown();
  at.socket.frame({ type: 'turn-start', tab: 't1', turnId: 'u9' });
  at.socket.frame({ type: 'status', tab: 't1', status: 'running' });
  at.socket.onclose({ code: 1006 });
  at.clock.go(1000);
  at.welcome({ resumed: true });
  at.socket.frame(windowFrame('t1', [], { base: 'keep', total: 5 }));
  assert.equal(at.session.window.turnId, null);
  assert.equal(at.session.tabs.get('t1').status, 'idle');
});

test(
  'a gap opens the tab anew',
  quiet(() => {
    const at = shown();
    at.socket.frame({ type: 'chunk', tab: 't1', chunk: row(8), total: 8 });
    assert.equal(at.socket.frames('open').length, 2);
    at.socket.frame(windowFrame('t1', rows(1, 8)));
    assert.equal(at.session.window.newest, 8);
  }),
);

test('a turn whose last row is missing opens the tab anew, but not under a reader', () => {
  const sealed = {
    type: 'turn-sealed',
    tab: 't1',
    turnId: 'u1',
    firstSeq: 1,
    lastSeq: 7,
    stopReason: 'end',
    usage: {},
  };
  const at = shown();
  at.socket.frame(sealed);
  assert.equal(at.socket.frames('open').length, 2);
  const reader = shown();
  reader.session.follow(false);
  reader.socket.frame(sealed);
  assert.equal(reader.socket.frames('open').length, 1);
});

test(
  'opening anew that does not help ends, and is told',
  quiet(() => {
    const at = shown();
    for (let i = 0; i < 6; i += 1) {
      at.socket.frame(windowFrame('t1', [row(1), row(3)]));
    }
    assert.equal(at.socket.frames('open').length, 4);
    assert.ok(at.told.includes('broken'));
  }),
);

test(
  'a fault in one frame does not stop the frames after it',
  quiet(() => {
    const at = shown();
    at.socket.frame({ type: 'chunk', tab: 't1', chunk: null, total: 6 });
    at.socket.frame(windowFrame('t1', rows(1, 6)));
    assert.equal(at.session.window.newest, 6);
  }),
);

test('older rows are asked for once per place of the edge', () => {
  const at = shown(rows(50, 60));
  assert.equal(at.session.more('older'), true);
  at.session.more('older');
  const [asked] = at.socket.frames('older');
  assert.equal(at.socket.frames('older').length, 1);
  at.socket.frame({ type: 'chunks', req: asked.req, tab: 't1', edge: 'older', chunks: [], total: 60 });
  assert.equal(at.session.more('older'), false, 'the edge did not move');
  assert.equal(at.socket.frames('older').length, 1);
});

test('asking for older rows means reading, and the first row ends the asking', () => {
  const at = shown(rows(50, 60));
  at.session.more('older');
  assert.equal(at.session.window.following, false);
  const top = shown(rows(1, 60 - 30));
  assert.equal(top.session.more('older'), false);
});

test('filling by the server does not answer what was asked', () => {
  const at = shown(rows(50, 60));
  at.session.more('older');
  at.socket.frame({ type: 'chunks', tab: 't1', edge: 'older', chunks: rows(40, 49), total: 60 });
  assert.ok(at.session.asked.older && !at.session.asked.older.done);
});

test('what came since the reader left the end is counted', () => {
  const at = shown();
  at.session.follow(false);
  at.socket.frame({ type: 'chunk', tab: 't1', chunk: row(6), total: 6 });
  at.socket.frame({ type: 'tail', tab: 't1', newest: 9, total: 9 });
  assert.equal(at.session.news, 4);
  at.session.follow(true);
  assert.equal(at.session.news, 0);
  assert.deepEqual(
    at.socket.frames('follow').map((frame) => frame.on),
    [false, true],
  );
});

test('turns that end in other tabs leave an unread mark until the tab is shown', () => {
  const at = shown();
  at.socket.frame({
    type: 'turn-sealed',
    tab: 't2',
    turnId: 'u3',
    firstSeq: 1,
    lastSeq: 2,
    stopReason: 'end',
    usage: {},
  });
  assert.ok(at.session.unread.has('t2'));
  at.session.show('t2');
  assert.ok(!at.session.unread.has('t2'));
});

test('a tab removed elsewhere is left', () => {
  const at = shown();
  at.socket.frame({ type: 'tab-removed', id: 't1' });
  assert.equal(at.session.current, null);
  assert.ok(!at.session.tabs.has('t1'));
});

test('rows of an earlier page are shown at once, and replaced by the server’s', () => {
  const at = made();
  at.session.recall({ tab: 't1', rows: rows(3, 6), total: 6, tabs: [tab('t1')] });
  assert.equal(at.session.window.newest, 6);
  assert.equal(at.session.window.resume('e1'), undefined, 'nothing is built upon them');
  at.socket.frame(windowFrame('t1', rows(5, 9)));
  assert.equal(at.session.window.oldest, 5);
});
