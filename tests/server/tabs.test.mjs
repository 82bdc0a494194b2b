// Tabs, messages and the queue, by HTTP, and what other clients are told of them.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { Siskin, textOf, until } from '../fixture.mjs';
import { call, mute, Provider, say, text } from '../provider.mjs';

const setUp = async (t, options = {}) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  return { provider, siskin: await Siskin.start(t, { provider, ...options }) };
};

test('a new tab is idle, and every client sees it at once', async (t) => {
  const { siskin } = await setUp(t);
  const peer = await siskin.peer();
  const seen = peer.frame((frame) => frame.type === 'tab');
  const tab = await siskin.newTab({ title: 'Wäsche 🧺' });
  assert.equal(tab.status, 'idle');
  assert.equal(tab.title, 'Wäsche 🧺');
  assert.equal(tab.model, 'a/scripted');
  assert.equal(tab.total, 0);
  assert.deepEqual(
    [tab.usage.input, tab.usage.cacheRead, tab.usage.cacheWrite, tab.usage.output],
    [0, 0, 0, 0],
  );
  assert.equal((await seen).tab.id, tab.id);
  assert.deepEqual(
    (await siskin.get('/api/tabs')).tabs.map((one) => one.id),
    [tab.id],
  );
});

test('a tab is renamed, archived and purged', async (t) => {
  const { siskin } = await setUp(t);
  const tab = await siskin.newTab();
  await siskin.turn(tab.id, 'hello');
  const patched = await siskin.api('PATCH', `/api/tabs/${tab.id}`, {
    title: 'New',
    model: 'o/other',
    position: 3,
  });
  assert.equal(patched.status, 200, patched.text);
  assert.deepEqual([patched.json.title, patched.json.model, patched.json.position], ['New', 'o/other', 3]);
  assert.equal((await siskin.api('PATCH', `/api/tabs/${tab.id}`, { model: 'no/such' })).status, 400);
  assert.equal((await siskin.api('PATCH', '/api/tabs/t99', { title: 'x' })).status, 404);
  assert.equal((await siskin.api('DELETE', `/api/tabs/${tab.id}`)).status, 204);
  assert.deepEqual((await siskin.get('/api/tabs')).tabs, []);
  assert.equal((await siskin.get('/api/tabs?archived=true')).tabs.length, 1);
  assert.ok((await siskin.log(tab.id)).length >= 2, 'archived rows can be read');
  const peer = await siskin.peer();
  const gone = peer.frame((frame) => frame.type === 'tab-removed');
  assert.equal((await siskin.api('DELETE', `/api/tabs/${tab.id}?purge=true`)).status, 204);
  assert.equal((await gone).id, tab.id);
  assert.equal((await siskin.api('GET', `/api/tabs/${tab.id}/chunks`)).status, 404);
  assert.notEqual((await siskin.newTab()).id, tab.id, 'ids are not given twice');
});

test('the same message twice is one message, with another text it is a conflict', async (t) => {
  const { siskin, provider } = await setUp(t);
  const tab = await siskin.newTab();
  const first = await siskin.send(tab.id, 'hello', 'same-id_1');
  assert.equal(first.status, 'started');
  assert.deepEqual(await siskin.send(tab.id, 'hello', 'same-id_1'), first);
  await siskin.idle(tab.id);
  assert.deepEqual(await siskin.send(tab.id, 'hello', 'same-id_1'), first, 'also when it is over');
  const other = await siskin.api('POST', `/api/tabs/${tab.id}/messages`, {
    clientId: 'same-id_1',
    text: 'other',
  });
  assert.equal(other.status, 409);
  await siskin.kill();
  await siskin.restart();
  assert.deepEqual(await siskin.send(tab.id, 'hello', 'same-id_1'), first, 'also after a crash');
  const both = await Promise.all([
    siskin.send(tab.id, 'again', 'at-once'),
    siskin.send(tab.id, 'again', 'at-once'),
  ]);
  assert.deepEqual(both[0], both[1]);
  await siskin.idle(tab.id);
  const rows = await siskin.log(tab.id);
  assert.deepEqual(
    rows.filter((row) => row.role === 'user').map((row) => row.data.text),
    ['hello', 'again'],
  );
  assert.equal(provider.asked.length, 2);
});

// Bug: escaped, a message of quotes was 32 bytes larger than a body may be. Effect: 413 within the limit.
test('the longest message is taken whole, whatever it is made of', async (t) => {
  const { siskin, provider } = await setUp(t);
  const tab = await siskin.newTab();
  const longest = '"'.repeat(128 * 1024);
  await siskin.send(tab.id, longest);
  await siskin.idle(tab.id);
  const rows = (await siskin.log(tab.id)).filter((row) => row.role === 'user');
  assert.equal(rows.map((row) => row.data.text).join(''), longest);
  assert.equal(provider.asked.length, 1);
});

test('what is no message is refused with its reason', async (t) => {
  const { siskin, provider } = await setUp(t);
  const tab = await siskin.newTab();
  const cases = [
    [{ clientId: 'a', text: '' }, 400],
    [{ clientId: 'a', text: ' \n\t' }, 400],
    [{ clientId: 'a' }, 400],
    [{ text: 'x' }, 400],
    [{ clientId: '', text: 'x' }, 400],
    [{ clientId: 'a b', text: 'x' }, 400],
    [{ clientId: 'a'.repeat(65), text: 'x' }, 400],
    [{ clientId: 1, text: 'x' }, 400],
    [[], 400],
    ['null', 400],
    [{ clientId: 'big', text: 'x'.repeat(130 * 1024) }, 413],
    [{ clientId: 'huge', text: 'x'.repeat(300 * 1024) }, 413],
  ];
  for (const [body, status] of cases) {
    const got = await siskin.api('POST', `/api/tabs/${tab.id}/messages`, body);
    assert.equal(got.status, status, JSON.stringify(body).slice(0, 80));
    assert.ok(got.json.error.message.length > 3);
  }
  assert.equal(
    (await siskin.api('POST', '/api/tabs/t99/messages', { clientId: 'a', text: 'x' })).status,
    404,
  );
  assert.equal(
    (await siskin.api('POST', '/api/tabs/x/messages', { clientId: 'a', text: 'x' })).status,
    404,
  );
  assert.equal((await siskin.tab(tab.id)).total, 0);
  assert.equal(provider.asked.length, 0);
});

test('a message of any text comes back as it was', async (t) => {
  const { siskin } = await setUp(t);
  const tab = await siskin.newTab();
  const texts = [
    'é👍 \u2028 <script>',
    'a\nb\r\nc\t',
    '  leading and trailing  ',
    `${'0123456789é'.repeat(9000)}`,
    'quote " back \\ slash / \u0007',
  ];
  for (const one of texts) await siskin.turn(tab.id, one);
  const rows = await siskin.log(tab.id);
  const turns = [...new Set(rows.map((row) => row.turnId))];
  turns.forEach((turn, n) => {
    assert.equal(
      textOf(
        rows.filter((row) => row.turnId === turn),
        'user',
      ),
      texts[n],
    );
  });
  const long = rows.filter((row) => row.turnId === turns[3] && row.role === 'user');
  assert.ok(long.length > 5);
  assert.deepEqual(
    long.map((row) => row.data.part ?? 0),
    long.map((_, n) => n),
  );
});

test('a page has its own edges, and a wrong question is refused', async (t) => {
  const { siskin } = await setUp(t);
  const tab = await siskin.newTab();
  const empty = await siskin.get(`/api/tabs/${tab.id}/chunks`);
  assert.deepEqual(empty, { chunks: [], total: 0, oldestSeq: null, newestSeq: null });
  for (let n = 0; n < 4; n += 1) await siskin.turn(tab.id, `message ${n}`);
  const page = async (query) => {
    const got = await siskin.get(`/api/tabs/${tab.id}/chunks?${query}`);
    assert.equal(got.total, 8);
    assert.equal(got.oldestSeq, got.chunks[0]?.seq ?? null);
    assert.equal(got.newestSeq, got.chunks.at(-1)?.seq ?? null);
    return got.chunks.map((row) => row.seq);
  };
  assert.deepEqual(await page('limit=3'), [6, 7, 8]);
  assert.deepEqual(await page('limit=3&before=5'), [2, 3, 4]);
  assert.deepEqual(await page('limit=3&after=5'), [6, 7, 8]);
  assert.deepEqual(await page('limit=3&after=2'), [3, 4, 5]);
  assert.deepEqual(await page('before=1'), []);
  assert.deepEqual(await page('after=8'), []);
  assert.deepEqual(await page('after=99999'), []);
  assert.deepEqual(await page('before=99999&limit=1'), [8]);
  for (const query of [
    'limit=0',
    'limit=257',
    'limit=x',
    'limit=-1',
    'limit=',
    'before=0',
    'after=-1',
    'before=1.5',
    'after=0',
    'before=3&after=1',
    'limit=1&limit=2',
    'before=99999999999999999999',
  ]) {
    assert.equal((await siskin.api('GET', `/api/tabs/${tab.id}/chunks?${query}`)).status, 400, query);
  }
});

test('a page stops at its bytes, and is never empty', async (t) => {
  const { siskin, provider } = await setUp(t);
  const tab = await siskin.newTab();
  provider.always = say([text('x'.repeat(200_000))]);
  await siskin.turn(tab.id, 'go');
  const page = await siskin.get(`/api/tabs/${tab.id}/chunks?limit=256`);
  assert.ok(page.chunks.length < page.total && page.chunks.length >= 3);
  assert.ok(page.chunks.reduce((sum, row) => sum + row.bytes, 0) <= 64 * 1024);
  assert.equal(textOf(await siskin.log(tab.id)), 'x'.repeat(200_000));
});

test('a message during a turn is queued, seen by all, and steers at the next tool boundary', async (t) => {
  const { siskin, provider } = await setUp(t);
  const tab = await siskin.newTab();
  const peer = await siskin.peer();
  await peer.open(tab.id);
  let go;
  const held = new Promise((done) => {
    go = done;
  });
  provider.answers = [
    async (exchange) => {
      await held;
      await say([call('system_info')])(exchange);
    },
    say('done'),
  ];
  await siskin.send(tab.id, 'first');
  await provider.next();
  const second = await siskin.send(tab.id, 'second', 'second-id');
  assert.equal(second.status, 'queued');
  await peer.until(() => peer.queue.length === 1, 'the queued message');
  const late = await siskin.peer();
  const { queue } = await late.open(tab.id);
  assert.deepEqual(queue, [
    { messageId: second.messageId, clientId: 'second-id', text: 'second', bytes: 6 },
  ]);
  go();
  await peer.turns();
  assert.equal(peer.queue.length, 0);
  const rows = await siskin.log(tab.id);
  assert.deepEqual(
    rows.map((row) => `${row.role} ${row.type}`),
    ['user text', 'assistant tool_call', 'tool tool_result', 'user text', 'assistant text'],
  );
  assert.equal(rows[3].data.steered, true);
  assert.equal(rows[3].step, 2, 'it bears the step whose request contains it');
  const content = provider.asked[1].json.messages.at(-1).content;
  assert.deepEqual(
    content.map((block) => block.type),
    ['tool_result', 'text'],
  );
  assert.deepEqual(peer.rows, rows);
});

test('without a tool boundary the queue starts the next turn, each message a row of its own', async (t) => {
  const { siskin, provider } = await setUp(t);
  const tab = await siskin.newTab();
  const peer = await siskin.peer();
  await peer.open(tab.id);
  let go;
  const held = new Promise((done) => {
    go = done;
  });
  provider.answers = [
    async (exchange) => {
      await held;
      await say('one')(exchange);
    },
    say('two'),
  ];
  await siskin.send(tab.id, 'first');
  await provider.next();
  await siskin.send(tab.id, 'second');
  await siskin.send(tab.id, 'third');
  go();
  await peer.turns(2);
  const rows = await siskin.log(tab.id);
  assert.deepEqual(
    rows.map((row) => row.data.text),
    ['first', 'one', 'second', 'third', 'two'],
  );
  assert.equal(provider.asked.length, 2);
});

test('a queued message can be taken back until it is consumed', async (t) => {
  const { siskin, provider } = await setUp(t);
  const tab = await siskin.newTab();
  provider.answers = [mute()];
  await siskin.send(tab.id, 'first');
  await provider.next();
  const { messageId } = await siskin.send(tab.id, 'second', 'taken-back');
  const kept = await siskin.send(tab.id, 'third');
  const route = `/api/tabs/${tab.id}/queue/${messageId}`;
  assert.equal((await siskin.api('DELETE', route)).status, 204);
  assert.equal((await siskin.api('DELETE', route)).status, 404);
  await siskin.api('POST', `/api/tabs/${tab.id}/stop`);
  await siskin.idle(tab.id);
  const peer = await siskin.peer();
  const { queue } = await peer.open(tab.id);
  assert.deepEqual(
    queue.map((message) => message.messageId),
    [kept.messageId],
    'after a stop it stays visible',
  );
  assert.equal((await siskin.api('POST', `/api/tabs/${tab.id}/queue/send`)).status, 202);
  await peer.turns();
  const rows = await siskin.log(tab.id);
  assert.deepEqual(
    rows.filter((row) => row.role === 'user').map((row) => row.data.text),
    ['first', 'third'],
  );
});

test('a new message goes behind what was left and starts it all', async (t) => {
  const { siskin, provider } = await setUp(t);
  const tab = await siskin.newTab();
  provider.answers = [mute()];
  await siskin.send(tab.id, 'first');
  await provider.next();
  await siskin.send(tab.id, 'left');
  await siskin.kill();
  await siskin.restart();
  const answer = await siskin.send(tab.id, 'new');
  assert.equal(answer.status, 'started');
  await siskin.idle(tab.id);
  const rows = await siskin.log(tab.id);
  assert.deepEqual(
    rows.filter((row) => row.role === 'user').map((row) => row.data.text),
    ['first', 'left', 'new'],
  );
  const [left, fresh] = rows.filter((row) => row.role === 'user').slice(1);
  assert.equal(left.turnId, fresh.turnId);
});

test('the queue has a limit that is said', async (t) => {
  const { siskin, provider } = await setUp(t);
  const tab = await siskin.newTab();
  provider.answers = [mute()];
  await siskin.send(tab.id, 'first');
  await provider.next();
  for (let n = 0; n < 16; n += 1) await siskin.send(tab.id, `queued ${n}`);
  const full = await siskin.api('POST', `/api/tabs/${tab.id}/messages`, {
    clientId: 'one-more',
    text: 'x',
  });
  assert.equal(full.status, 409);
  assert.equal(full.json.error.code, 'full');
  assert.match(full.json.error.message, /queue/);
});

test('settings are checked, kept and told', async (t) => {
  const { siskin } = await setUp(t);
  const peer = await siskin.peer();
  const before = await siskin.get('/api/settings');
  assert.equal(before.defaultModel, 'a/scripted');
  const told = peer.frame((frame) => frame.type === 'limits');
  const put = await siskin.api('PUT', '/api/settings', {
    chunkLimit: 30,
    defaultModel: 'o/other',
    systemPrompt: 'Be brief.',
  });
  assert.equal(put.status, 200, put.text);
  assert.equal((await told).chunkLimit, 30);
  assert.equal(put.json.chunkLimit, 30);
  for (const wrong of [
    { chunkLimit: 19 },
    { chunkLimit: 'x' },
    { byteLimit: 1 },
    { defaultModel: 'no/such' },
    { systemPrompt: 'x'.repeat(40_000) },
    { permissions: [{ tool: 'x', match: '*', do: 'maybe' }] },
  ]) {
    assert.ok(
      [400, 413].includes((await siskin.api('PUT', '/api/settings', wrong)).status),
      JSON.stringify(wrong).slice(0, 60),
    );
  }
  await siskin.kill();
  await siskin.restart();
  const after = await siskin.get('/api/settings');
  assert.deepEqual(
    [after.chunkLimit, after.defaultModel, after.systemPrompt],
    [30, 'o/other', 'Be brief.'],
  );
  assert.equal((await siskin.newTab()).model, 'o/other');
  const reset = await siskin.api('PUT', '/api/settings', {
    defaultModel: null,
    systemPrompt: null,
    chunkLimit: null,
  });
  assert.deepEqual(reset.json, before);
});

test('a turn that waits for a slot says so, and starts by itself', async (t) => {
  const { siskin, provider } = await setUp(t);
  const tabs = await Promise.all(Array.from({ length: 4 }, () => siskin.newTab()));
  const gates = [];
  provider.always = async (exchange) => {
    await new Promise((done) => gates.push(done));
    await say('ok')(exchange);
  };
  for (const tab of tabs.slice(0, 3)) assert.equal((await siskin.send(tab.id, 'go')).status, 'started');
  await until(() => gates.length === 3, 'three turns to run');
  const message = { clientId: 'fourth', text: 'go' };
  const route = `/api/tabs/${tabs[3].id}/messages`;
  const waiting = await siskin.api('POST', route, message);
  assert.equal(waiting.json.status, 'waiting');
  assert.equal((await siskin.tab(tabs[3].id)).status, 'waiting');
  assert.equal(provider.asked.length, 3);
  gates.shift()();
  await until(() => gates.length === 3, 'the fourth turn to run');
  gates.forEach((open) => open());
  for (const tab of tabs) assert.equal((await siskin.idle(tab.id)).status, 'idle');
  assert.deepEqual((await siskin.api('POST', route, message)).json, waiting.json, 'the same answer later on');
});

test('of two messages at the same moment one starts the turn and the other waits its time', async (t) => {
  const { siskin, provider } = await setUp(t);
  for (let n = 0; n < 10; n += 1) {
    const tab = await siskin.newTab();
    const both = await Promise.all([siskin.send(tab.id, 'one'), siskin.send(tab.id, 'two')]);
    const rows = await until(async () => {
      const log = await siskin.log(tab.id);
      return (
        log.at(-1)?.role === 'assistant' && log.filter((row) => row.role === 'user').length === 2 && log
      );
    }, 'both to be answered');
    await siskin.idle(tab.id);
    const users = rows.filter((row) => row.role === 'user').map((row) => row.data.text);
    assert.deepEqual(users.sort(), ['one', 'two']);
    assert.ok(both.some((answer) => answer.status === 'started'));
  }
  assert.deepEqual(provider.asked.map((request) => request.fault).filter(Boolean), []);
});

test('another process that holds the database delays a message and loses none', async (t) => {
  const { siskin } = await setUp(t);
  const tab = await siskin.newTab();
  await siskin.turn(tab.id, 'before');
  const script =
    'import sqlite3,sys,time;d=sqlite3.connect(sys.argv[1],isolation_level=None);' +
    'd.execute("begin immediate");print("held",flush=True);time.sleep(2);d.execute("rollback")';
  const file = fs.readdirSync(siskin.data).find((name) => name.endsWith('.db'));
  const holder = spawn('python3', ['-c', script, path.join(siskin.data, file)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  await new Promise((done) => holder.stdout.once('data', done));
  const began = Date.now();
  assert.equal((await siskin.turn(tab.id, 'meanwhile', 30_000)).stopReason, 'end');
  assert.ok(Date.now() - began > 1000, 'it was held');
  assert.deepEqual(
    (await siskin.log(tab.id)).map((row) => row.data.text),
    ['before', 'ok', 'meanwhile', 'ok'],
  );
});

test('a result of several rows is paged through as one text', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  const tab = await siskin.newTab();
  const lines = Array.from({ length: 3000 }, (_, n) => `line ${n}, é👍`);
  fs.writeFileSync(path.join(tab.workdir, 'long.txt'), lines.join('\n'));
  provider.answers = [say([call('read_file', { path: 'long.txt' })]), say([text('that was it')])];
  await siskin.turn(tab.id, 'read it');
  const parts = (await siskin.log(tab.id)).filter((row) => row.type === 'tool_result');
  assert.ok(parts.length > 1, 'it is several rows');
  const whole = parts.map((row) => row.data.result).join('');
  const last = parts.at(-1).seq;
  const route = `/api/tabs/${tab.id}/results/${last}`;
  let joined = '';
  for (let offset = 0; offset !== undefined; ) {
    const page = await siskin.get(`${route}?offset=${offset}`);
    assert.equal(page.offset, offset);
    assert.equal(page.bytes, Buffer.byteLength(whole));
    assert.ok(Buffer.byteLength(page.text) <= 16 * 1024 && page.text.length > 0);
    joined += page.text;
    offset = page.nextOffset;
  }
  assert.equal(joined, whole);
  for (const [wrong, status] of [
    [`/api/tabs/${tab.id}/results/${parts[0].seq}`, 404],
    [`/api/tabs/${tab.id}/results/1`, 404],
    [`/api/tabs/${tab.id}/results/999999`, 404],
    [`${route}?offset=99999999`, 400],
    [`${route}?offset=-1`, 400],
  ]) {
    assert.equal((await siskin.api('GET', wrong)).status, status, wrong);
  }
});
