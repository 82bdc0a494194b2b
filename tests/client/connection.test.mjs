// The connection: hello, ping, silence, coming back. The clock and the sockets are the test's.
import assert from 'node:assert/strict';
import test from 'node:test';
import {
  BACKOFF_MAX_MS,
  BACKOFF_MIN_MS,
  Connection,
  GREET_MS,
  PING_MS,
  PONG_MS,
} from '../../static/core/connection.js';
import { Clock, Socket } from './helpers.mjs';

function made() {
  const clock = new Clock();
  const seen = { sockets: [], states: [], frames: [], clock };
  const connection = new Connection({
    ...clock.around,
    socket: () => {
      const socket = new Socket();
      seen.sockets.push(socket);
      return socket;
    },
    hello: () => ({ type: 'hello', token: 'x' }),
    onFrame: (frame) => seen.frames.push(frame),
    onState: (state) => seen.states.push(state),
  });
  return { ...seen, connection };
}

const last = (list) => list[list.length - 1];

function open(at) {
  at.connection.start();
  last(at.sockets).onopen();
  last(at.sockets).frame({ type: 'welcome' });
  return last(at.sockets);
}

test('hello is the first frame, and welcome opens', () => {
  const at = made();
  const socket = open(at);
  assert.equal(socket.sent[0].type, 'hello');
  assert.deepEqual(at.states, ['connecting', 'open']);
});

test('nothing is sent before welcome', () => {
  const at = made();
  at.connection.start();
  last(at.sockets).onopen();
  assert.equal(at.connection.send({ type: 'open' }), false);
  assert.equal(last(at.sockets).frames('open').length, 0);
});

test('a ping goes out every 20 s, and a pong keeps the socket', () => {
  const at = made();
  const socket = open(at);
  for (let n = 1; n <= 3; n += 1) {
    at.clock.go(PING_MS);
    assert.equal(socket.frames('ping').length, n);
    socket.frame({ type: 'pong', n });
  }
  at.clock.go(PONG_MS);
  assert.equal(at.sockets.length, 1);
});

test('a peer that does not answer a ping is given up and tried anew at once', () => {
  const at = made();
  const socket = open(at);
  at.clock.go(PING_MS + PONG_MS);
  assert.equal(socket.closed, 1000);
  assert.equal(at.sockets.length, 2);
  assert.equal(at.connection.state, 'connecting');
});

test('an old pong does not stand for a new one', () => {
  const at = made();
  const socket = open(at);
  at.clock.go(PING_MS);
  socket.frame({ type: 'pong', n: 1 });
  at.clock.go(PING_MS);
  socket.frame({ type: 'pong', n: 1 });
  at.clock.go(PONG_MS);
  assert.equal(at.sockets.length, 2);
});

test('waits grow from half a second to ten, with jitter, and begin anew after a welcome', () => {
  const at = made();
  at.connection.start();
  const waits = [];
  for (let i = 0; i < 8; i += 1) {
    last(at.sockets).onclose({ code: 1006 });
    waits.push(at.connection.retryAt - at.clock.time);
    at.clock.go(waits[i]);
  }
  assert.equal(waits[0], BACKOFF_MIN_MS);
  assert.ok(waits.every((wait, i) => i === 0 || wait >= waits[i - 1]));
  assert.ok(last(waits) <= BACKOFF_MAX_MS && last(waits) > BACKOFF_MAX_MS / 2);
  last(at.sockets).onopen();
  last(at.sockets).frame({ type: 'welcome' });
  last(at.sockets).onclose({ code: 1001 });
  assert.equal(at.connection.retryAt - at.clock.time, BACKOFF_MIN_MS);
});

test('waking up tries at once while waiting, and pings while open', () => {
  const at = made();
  const socket = open(at);
  at.connection.nudge();
  assert.equal(socket.frames('ping').length, 1);
  socket.onclose({ code: 1006 });
  at.connection.nudge();
  assert.equal(at.sockets.length, 2);
  at.clock.go(BACKOFF_MAX_MS - 1);
  assert.equal(at.sockets.length, 2, 'the timer of the wait is gone');
});

test('a refused token is not tried again', () => {
  const at = made();
  at.connection.start();
  last(at.sockets).onclose({ code: 4401 });
  assert.equal(at.connection.state, 'denied');
  at.clock.go(10 * BACKOFF_MAX_MS);
  at.connection.nudge();
  assert.equal(at.sockets.length, 1);
});

test('a socket that never says welcome is given up', () => {
  const at = made();
  at.connection.start();
  at.clock.go(GREET_MS);
  assert.equal(at.connection.state, 'waiting');
});

test('a socket that was given up is not heard any more', () => {
  const at = made();
  const old = open(at);
  at.clock.go(PING_MS + PONG_MS);
  old.frame({ type: 'chunk' });
  assert.equal(at.frames.filter((frame) => frame.type === 'chunk').length, 0);
});

test('a second welcome on the same socket reaches the session', () => {
  const at = made();
  open(at).frame({ type: 'welcome', again: true });
  assert.equal(at.frames.length, 2);
  assert.deepEqual(at.states, ['connecting', 'open']);
});
