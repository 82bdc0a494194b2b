// Random conversations through the real server, and what holds for each of them:
//
// - the provider, which is stricter than the real ones, refused nothing;
// - within a generation each request begins with the blocks of the one before, byte for byte;
// - on the Messages wire each request reads from the prompt cache all that the one before wrote;
// - every message that was acknowledged is in the log, once, and the log is valid;
// - the tab still works.
//
// `SISKIN_TALKS` is how many there are, `SISKIN_SEED` the seed; a failure names both and the conversation,
// which `SISKIN_TALK` then repeats alone.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { asksForSummary, babble, calmly, FILES, words } from '../babble.mjs';
import { beginsGeneration, prefixFault } from '../blame.mjs';
import { Cache, shapeOf } from '../cache.mjs';
import { chance } from '../chance.mjs';
import { checkLog, Siskin } from '../fixture.mjs';
import { call, Provider, say, text } from '../provider.mjs';

const TALKS = Number(process.env.SISKIN_TALKS ?? 200);
const SEED = Number(process.env.SISKIN_SEED ?? Date.now() % 1_000_000);
const ONLY = process.env.SISKIN_TALK === undefined ? undefined : Number(process.env.SISKIN_TALK);
/** Servers at once: most of a conversation is waiting. */
const LANES = ONLY === undefined ? 6 : 1;

const MODELS = {
  a: ['a/scripted', 'a/other', 'a/claude-sonnet-4-5', 'a/claude-opus-5-5', 'a/claude-opus-4-5'],
  o: ['o/scripted', 'o/other'],
};
const EFFORTS = [null, 'low', 'high'];

/** What was looked at, so that a run which looks at nothing is seen. */
const seen = { talks: 0, requests: 0, prefixes: 0, hits: 0, summaries: 0, generations: 0, thinking: 0 };

/** One random conversation in a tab of its own. */
class Talk {
  asked = 0;
  acts = [];
  /** text by clientId: acknowledged, and sent without an answer */
  kept = new Map();
  unsure = new Map();
  calm = false;

  constructor(siskin, provider, no) {
    Object.assign(this, { siskin, provider, no });
    this.next = chance(SEED * 1000 + no);
    this.wire = no % 2 ? 'o' : 'a';
    provider.requests.length = 0;
    provider.cache = new Cache();
    provider.always = (exchange) => {
      const seed = SEED * 7919 + no * 1009 + (this.asked += 1);
      return this.calm ? calmly(exchange) : babble(exchange, seed);
    };
  }

  get route() {
    return `/api/tabs/${this.tab.id}`;
  }

  async run() {
    const { next } = this;
    this.tab = await this.siskin.newTab({ model: next.one(MODELS[this.wire]) });
    await this.siskin.api('PUT', '/api/settings', { sendTime: next.in(50) });
    const acts = next.between(3, 8);
    for (let n = 0; n < acts; n += 1) await this.act();
    await this.settle();
    await this.check();
    await this.siskin.api('DELETE', this.route);
    seen.talks += 1;
  }

  async act() {
    const kind = this.next.weighed([
      [34, 'turn'],
      [16, 'steer'],
      [16, 'stop'],
      [5, 'kill'],
      [5, 'restart'],
      [12, 'model'],
      [6, 'effort'],
      [6, 'again'],
      [10, 'compact'],
      [3, 'prompt'],
    ]);
    this.acts.push(kind);
    await this[kind]();
  }

  /** Sends a message, and notes whether it was taken. */
  async send(text = words(this.next), clientId = `t${this.no}-${this.kept.size + this.unsure.size}`) {
    this.unsure.set(clientId, text);
    const answer = await this.siskin
      .api('POST', `${this.route}/messages`, { clientId, text })
      .catch(() => null);
    if (!answer) return null;
    if (answer.status === 409 && /full|stopping/.test(answer.text)) return answer;
    assert.equal(answer.status, 202, answer.text);
    this.unsure.delete(clientId);
    this.kept.set(clientId, text);
    return answer.json;
  }

  idle() {
    return this.siskin.idle(this.tab.id, 60_000);
  }

  async turn() {
    await this.send();
    await this.idle();
  }

  async steer() {
    await this.send();
    for (let more = this.next.between(1, 2); more > 0; more -= 1) {
      await sleep(this.next(25));
      await this.send();
    }
    await this.idle();
  }

  async stop() {
    await this.send();
    await sleep(this.next(50));
    if (this.next.in(30)) await this.send();
    assert.equal((await this.siskin.api('POST', `${this.route}/stop`)).status, 202);
    await this.idle();
    if (this.next.in(30)) await this.siskin.api('POST', `${this.route}/queue/send`);
    await this.idle();
  }

  async kill() {
    const pending = this.send();
    await sleep(this.next(60));
    await this.siskin.kill();
    await pending;
    await this.siskin.restart();
  }

  async restart() {
    const pending = this.send();
    await sleep(this.next(60));
    await this.siskin.stop();
    await pending;
    await this.siskin.restart();
  }

  async patch(fields) {
    const changed = await this.siskin.api('PATCH', this.route, fields);
    assert.equal(changed.status, 200, changed.text);
  }

  async model() {
    if (this.next.in(30)) await this.send();
    if (this.next.in(40)) this.wire = this.wire === 'a' ? 'o' : 'a';
    await this.patch({ model: this.next.one(MODELS[this.wire]) });
    await this.idle();
  }

  async effort() {
    // One that the model does not take is refused, and the old one stays.
    await this.siskin.api('PATCH', `/api/tabs/${this.tab.id}`, { effort: this.next.one(EFFORTS) });
  }

  /** Shortens by hand; what is sent meanwhile waits in the queue. */
  async compact() {
    if (this.next.in(20)) await this.send();
    const { status, text } = await this.siskin.api('POST', `${this.route}/compact`);
    assert.ok([202, 409].includes(status), text);
    if (this.next.in(30)) await this.send();
    if (this.next.in(15)) {
      await sleep(this.next(20));
      await this.siskin.api('POST', `${this.route}/stop`);
    }
    await this.idle();
  }

  /** A new prompt reaches an old tab where its prefix changes anyway. */
  async prompt() {
    await this.siskin.api('PUT', '/api/settings', { systemPrompt: `Be ${words(this.next, 3)}` });
  }

  /** The same message once more: nothing is said twice. */
  async again() {
    const known = [...this.kept];
    if (known.length) {
      const [clientId, text] = this.next.one(known);
      await this.send(text, clientId);
      await this.idle();
    }
  }

  /** Lets all that is queued become turns, and sees that the tab still answers. */
  async settle() {
    this.calm = true;
    await this.idle();
    await this.siskin.api('POST', `${this.route}/queue/send`);
    await this.idle();
    await this.send('the end');
    await this.idle();
  }

  async check() {
    assert.equal(this.provider.fault, undefined);
    const { asked } = this.provider;
    const refused = asked.find((exchange) => exchange.fault);
    if (refused) {
      const body = JSON.stringify(refused.json?.messages?.slice(-3)).slice(-2000);
      assert.fail(`the provider refused (${refused.wire}): ${refused.fault.message}\n${body}`);
    }
    if (process.env.SISKIN_DUMP) await this.dump(process.env.SISKIN_DUMP);
    const rows = await this.siskin.log(this.tab.id);
    const last = await this.siskin.lastTurn(this.tab.id);
    const error = rows.findLast((row) => row.type === 'error');
    assert.equal(last.stopReason, 'end', `the tab still answers: ${JSON.stringify(error?.data)}`);
    assert.deepEqual([...checkLog(rows).keys()], [], 'every call has its result');
    this.checkMessages(rows);
    checkRequests(asked, rows);
  }

  /** Writes the log and the requests to a file, for whoever looks into a failure. */
  async dump(file) {
    const { chunks } = await this.siskin.get(`${this.route}/chunks?limit=256`);
    const requests = this.provider.asked.map(({ at, wire, text, cached }) => ({ at, wire, cached, text }));
    const lines = [...chunks, ...requests].sort((a, b) => (a.createdAt ?? a.at) - (b.createdAt ?? b.at));
    fs.writeFileSync(file, lines.map((line) => `${JSON.stringify(line).slice(0, 3000)}\n`).join(''));
  }

  checkMessages(rows) {
    const said = new Map();
    for (const { role, data } of rows)
      if (role === 'user') said.set(data.clientId, (said.get(data.clientId) ?? '') + data.text);
    for (const [clientId, text] of this.kept)
      assert.equal(said.get(clientId), text, `acknowledged message ${clientId}`);
    for (const [clientId, text] of this.unsure)
      assert.ok([undefined, text].includes(said.get(clientId)), `message ${clientId}`);
    const known = this.kept.size + this.unsure.size;
    assert.ok(said.size <= known, 'nobody else spoke');
  }
}

/** What holds between each request and the next, as far as no new generation lies between them. */
function checkRequests(asked, rows) {
  const begins = rows.filter(beginsGeneration).map((row) => row.createdAt);
  const generation = (exchange) => begins.filter((at) => at <= exchange.at).length;
  let [last, cached] = [];
  seen.generations += begins.length;
  asked.forEach((exchange, n) => {
    const before = asked[n - 1];
    const same = before && generation(before) === generation(exchange);
    if (!same) {
      last = undefined;
      cached = undefined;
    }
    const sums = asksForSummary(exchange);
    seen.requests += 1;
    seen.prefixes += last ? 1 : 0;
    seen.summaries += sums ? 1 : 0;
    seen.thinking += /"type":"thinking"/.test(exchange.text) ? 1 : 0;
    const fault = last ? prefixFault(last.text, exchange.text, rows, sums) : null;
    assert.equal(fault, null, `request ${n + 1} of ${asked.length} (${exchange.wire}): ${fault}`);
    // A summary may be asked for of the beginning alone, and the question is not part of the conversation.
    if (sums) return;
    last = exchange;
    if (exchange.wire !== 'anthropic' || !exchange.cached) return;
    if (cached) checkCache(cached, exchange, n);
    cached = exchange;
  });
}

function checkCache(before, exchange, n) {
  if (shapeOf(before.json) !== shapeOf(exchange.json)) return;
  const { cacheRead: read, cacheWrite: wrote } = before.cached;
  seen.hits += read + wrote > 0 ? 1 : 0;
  const where = JSON.stringify([before.cached, exchange.cached]);
  assert.ok(
    exchange.cached.cacheRead >= read + wrote,
    `request ${n + 1} reads all that was written before: ${where}`,
  );
}

function furnish(siskin) {
  for (const [name, content] of Object.entries(FILES))
    fs.writeFileSync(path.join(siskin.workdir, name), content);
}

async function lane(t, take) {
  const provider = await Provider.start({ openai: { template: true } });
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider });
  furnish(siskin);
  for (let no = take(); no !== undefined; no = take()) {
    const talk = new Talk(siskin, provider, no);
    await talk.run().catch((fault) => {
      fault.message =
        `conversation ${no} (SISKIN_SEED=${SEED} SISKIN_TALK=${no}), tab ${talk.tab?.id}, ` +
        `${talk.acts.join(' ')}: ${fault.message}`;
      throw fault;
    });
  }
}

test('random conversations break nothing, neither for the provider nor for its cache', async (t) => {
  const list = ONLY === undefined ? Array.from({ length: TALKS }, (_, n) => n) : [ONLY];
  const take = () => list.shift();
  const lanes = Array.from({ length: LANES }, () =>
    lane(t, take).catch((fault) => {
      list.length = 0;
      return fault;
    }),
  );
  // All of them, so that none starts a server again when the test is over.
  const faults = (await Promise.all(lanes)).filter(Boolean);
  if (faults.length) throw faults[0];
  t.diagnostic(`seed ${SEED}: ${JSON.stringify(seen)}`);
  if (ONLY === undefined && TALKS >= 100)
    for (const [what, count] of Object.entries(seen)) assert.ok(count >= TALKS / 5, `${count} ${what}`);
});

/** Changes a stored row behind the server's back, which nothing else can. */
function edit(siskin, seq, change) {
  const script = [
    'import json, sqlite3, sys',
    'db = sqlite3.connect(sys.argv[1])',
    'query = "select id, data from chunks where id & 4294967295 = ?"',
    'at, data = db.execute(query, (int(sys.argv[2]),)).fetchone()',
    'new = json.dumps({**json.loads(data), **json.loads(sys.argv[3])}, separators=(",", ":"))',
    'db.execute("update chunks set data = ? where id = ?", (new, at))',
    'db.commit()',
  ].join('\n');
  const file = path.join(siskin.data, 'siskin.db');
  const ran = spawnSync('python3', ['-c', script, file, String(seq), JSON.stringify(change)]);
  assert.equal(ran.status, 0, `${ran.stderr}`);
}

for (const [wire, model] of [
  ['anthropic', 'a/scripted'],
  ['openai', 'o/scripted'],
]) {
  test(`${wire}: a row that changed is found and named`, async (t) => {
    const provider = await Provider.start({ cache: new Cache() });
    t.after(() => provider.stop());
    const siskin = await Siskin.start(t, { provider });
    furnish(siskin);
    const tab = await siskin.newTab({ model });
    provider.always = say(() => [text(words(chance(provider.requests.length)))]);
    provider.answers = [say([text('I look. '), call('read_file', { path: 'note.txt' })])];
    for (let n = 0; n < 3; n += 1) await siskin.turn(tab.id, `message ${n}, which is to be found`);
    const rows = await siskin.log(tab.id);
    checkRequests(provider.asked, rows);
    const edits = [
      [rows.find((row) => row.type === 'text' && row.role === 'assistant'), { text: 'another text' }],
      [rows.find((row) => row.type === 'tool_result'), { result: 'the answer is 43' }],
      [rows.find((row) => row.type === 'tool_call'), { arguments: '{"path":"note.text"}' }],
      [rows.find((row) => row.role === 'user'), { text: 'message 0, which is not to be found' }],
    ];
    for (const [row, change] of edits) {
      const from = provider.asked.length;
      await siskin.stop();
      edit(siskin, row.seq, change);
      await siskin.restart();
      await siskin.turn(tab.id, `after row ${row.seq}`);
      const after = await siskin.log(tab.id);
      const wrong = new RegExp(`block \\d+ of \\d+ changed.*row ${row.seq} \\(${row.type}\\)`);
      assert.throws(() => checkRequests(provider.asked.slice(from - 1), after), wrong);
      const { missCause } = (await siskin.lastTurn(tab.id)).steps[0].prefix;
      assert.match(missCause ?? 'none', /^block: \d+ \(row \d+\)$/, `what Siskin says of row ${row.seq}`);
    }
  });
}
