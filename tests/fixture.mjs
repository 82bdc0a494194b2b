// One fixture for all whole-server tests: the real release binary in a temporary folder, on a port of its
// own.
//
//   const siskin = await Siskin.start(t, { provider });      // paired, stopped and removed when the test
// ends
//   const tab = await siskin.newTab();
//   await siskin.send(tab.id, 'hello');  await siskin.idle(tab.id);  await siskin.log(tab.id);
//
// `SISKIN_BIN` names another binary, `SISKIN_RUN` a command to run it by, such as an emulator.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Peer } from './peer.mjs';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));

/** The binary under test. */
export const BINARY = process.env.SISKIN_BIN ?? path.join(root, 'target', 'release', 'siskin');

/** The binary with its emulator, if any, as the words of a command. */
export const COMMAND = [...(process.env.SISKIN_RUN ?? '').split(' ').filter(Boolean), BINARY];

/** Waits until `look` gives something true, and gives that. */
export async function until(look, what, ms = 10_000) {
  const deadline = Date.now() + ms;
  for (;;) {
    const seen = await look();
    if (seen) return seen;
    if (Date.now() > deadline) throw new Error(`waited ${ms} ms for: ${what}`);
    await sleep(10);
  }
}

/** Runs the binary to its end: `{code, stdout, stderr}`. */
export async function run(args, { env = {}, by = [], ms = 15_000, input, command = COMMAND } = {}) {
  const [program, ...words] = [...by, ...command, ...args];
  const child = spawn(program, words, { env: { ...cleanEnv(), ...env }, stdio: ['pipe', 'pipe', 'pipe'] });
  const out = { stdout: '', stderr: '' };
  child.stdout.on('data', (bytes) => {
    out.stdout += bytes;
  });
  child.stderr.on('data', (bytes) => {
    out.stderr += bytes;
  });
  child.stdin.end(input);
  const late = setTimeout(() => child.kill('SIGKILL'), ms);
  const [code, signal] = await new Promise((done) => child.once('close', (...how) => done(how)));
  clearTimeout(late);
  return { code: code ?? signal, ...out };
}

const ends = new WeakMap();

/**
 * Has `end` called when the test is over, the last one first: a page goes before its server, and that
 * before its folder.
 */
export function atEnd(t, end) {
  const stack = ends.get(t) ?? [];
  stack.push(end);
  if (ends.has(t)) return;
  ends.set(t, stack);
  t.after(async () => {
    const faults = [];
    for (const one of stack.reverse())
      await Promise.resolve()
        .then(one)
        .catch((fault) => faults.push(fault));
    if (faults.length) throw faults[0];
  });
}

/** A temporary folder that goes when the test ends. */
export function folder(t) {
  const dir = fs.mkdtempSync(path.join(os.tmpdir(), 'siskin-test-'));
  atEnd(t, () => fs.rmSync(dir, { recursive: true, force: true }));
  return dir;
}

function cleanEnv() {
  const {
    ANTHROPIC_API_KEY,
    OPENAI_API_KEY,
    XDG_DATA_HOME,
    STATE_DIRECTORY,
    CREDENTIALS_DIRECTORY,
    ...env
  } = process.env;
  return env;
}

/** One HTTP exchange on a connection of its own: `{status, headers, text, json}`. */
export function request(url, { method = 'GET', headers = {}, body, ms = 20_000 } = {}) {
  return new Promise((done, fail) => {
    const asked = http.request(url, { method, agent: false, headers: { ...headers } });
    asked.setTimeout(ms, () => asked.destroy(new Error(`${method} ${url}: no answer in ${ms} ms`)));
    asked.on('error', fail);
    asked.on('response', (response) => {
      const pieces = [];
      response.on('data', (piece) => pieces.push(piece));
      response.on('error', fail);
      response.on('end', () => {
        const bytes = Buffer.concat(pieces);
        const isJson = /^application\/json/.test(response.headers['content-type'] ?? '');
        const text = bytes.toString('utf8');
        const json = isJson && text ? JSON.parse(text) : undefined;
        done({ status: response.statusCode, headers: response.headers, bytes, text, json });
      });
    });
    if (body === undefined) asked.end();
    else asked.end(body);
  });
}

let sent = 0;

/** A server that runs. */
export class Siskin {
  peers = [];
  stdout = '';
  stderr = '';

  /**
   * Starts and pairs one; `t` ends it. `provider`: a scripted one, reached as `model` by the wires `a`
   * (anthropic) and `o` (openai). `config`: further TOML before the tables; `tables`: after them; `budget`:
   * changed limits; `args`; `env`;
   * `by`: words before the command, such as strace; `pair: false` leaves that to the test.
   */
  static async start(t, options = {}) {
    const siskin = new Siskin();
    siskin.options = options;
    siskin.dir = folder(t);
    siskin.data = options.data ?? path.join(siskin.dir, 'data');
    siskin.workdir = path.join(siskin.data, 'work');
    siskin.config = path.join(siskin.dir, 'siskin.toml');
    siskin.configure();
    atEnd(t, () => siskin.end());
    await siskin.#spawn();
    if (options.pair !== false) await siskin.pair();
    return siskin;
  }

  /** Writes the config file anew. */
  configure() {
    const {
      provider,
      config = '',
      tables = '',
      budget = {},
      listen = '127.0.0.1:0',
      wires = ['a', 'o'],
    } = this.options;
    const lines = [
      `listen = ${JSON.stringify(listen)}`,
      `data = ${JSON.stringify(this.data)}`,
      'send_time = false',
      config,
    ];
    if (provider) {
      fs.writeFileSync(path.join(this.dir, 'key'), `${this.options.key ?? provider.key}\n`, {
        mode: 0o600,
      });
      if (!/default_model/.test(config)) lines.push(`default_model = "${wires[0]}/scripted"`);
      for (const wire of wires) {
        lines.push(
          '[[provider]]',
          `name = "${wire}"`,
          `kind = "${wire === 'a' ? 'anthropic' : 'openai'}"`,
          `base_url = "${this.options.baseUrl ?? provider.url}"`,
          'models = ["scripted", "other"]',
          `api_key_file = "${path.join(this.dir, 'key')}"`,
          this.options.providerConfig ?? '',
        );
      }
    }
    lines.push(tables);
    if (Object.keys(budget).length) {
      lines.push('[budget]', ...Object.entries(budget).map(([name, value]) => `${name} = ${value}`));
    }
    fs.writeFileSync(this.config, `${lines.join('\n')}\n`);
  }

  async #spawn() {
    const { args = [], env = {}, by = [], demo = false } = this.options;
    const [program, ...words] = [
      ...by,
      ...COMMAND,
      'serve',
      '--config',
      this.config,
      '--data',
      this.data,
      ...(demo ? ['--demo'] : []),
      ...args,
    ];
    this.stdout = '';
    this.child = spawn(program, words, {
      env: { ...cleanEnv(), ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.ended = new Promise((done) => this.child.once('close', (code, signal) => done({ code, signal })));
    this.running = true;
    this.ended.then(() => {
      this.running = false;
    });
    this.child.stdout.on('data', (bytes) => {
      this.stdout += bytes;
    });
    this.child.stderr.on('data', (bytes) => {
      this.stderr = (this.stderr + bytes).slice(-200_000);
    });
    const line = await until(
      () => {
        if (!this.running) throw new Error(`siskin ended at once: ${this.stdout}${this.stderr}`);
        return /(http:\/\/[^\s/]+:(\d+))\//.exec(this.stdout);
      },
      'the line with the URL',
      20_000,
    );
    [, this.url, this.port] = line;
    this.port = Number(this.port);
    this.pid = by.length ? childOf(this.child.pid) : this.child.pid;
  }

  /** The pairing link that was printed. */
  async link() {
    return until(() => /http:\/\/\S+#pair=[A-Z0-9-]+/.exec(this.stdout)?.[0], 'the pairing link');
  }

  /** Pairs with the printed code. */
  async pair(name = 'test') {
    const code = (await this.link()).split('#pair=')[1];
    const paired = await this.api('POST', '/api/pair', { code, name });
    assert.equal(paired.status, 201, paired.text);
    this.token = paired.json.token;
    this.deviceId = paired.json.deviceId;
  }

  /** One request with the token: `{status, headers, text, json}`. */
  api(method, route, body, { headers = {}, token = this.token, ...more } = {}) {
    const all = { ...(token ? { authorization: `Bearer ${token}` } : {}), ...headers };
    if (body === undefined) return request(this.url + route, { method, headers: all, ...more });
    const bytes = typeof body === 'string' ? body : JSON.stringify(body);
    return request(this.url + route, {
      method,
      body: bytes,
      ...more,
      headers: { 'content-type': 'application/json', 'content-length': Buffer.byteLength(bytes), ...all },
    });
  }

  /** The JSON of a GET that has to succeed. */
  async get(route) {
    const got = await this.api('GET', route);
    assert.equal(got.status, 200, `${route}: ${got.status} ${got.text}`);
    return got.json;
  }

  /** A new tab. */
  async newTab(fields = {}) {
    const made = await this.api('POST', '/api/tabs', fields);
    assert.equal(made.status, 201, made.text);
    return made.json;
  }

  /** Sends a message that has to be accepted; gives the answer. */
  async send(tab, text, clientId = `c${(sent += 1)}`) {
    const answer = await this.api('POST', `/api/tabs/${tab}/messages`, { clientId, text });
    assert.equal(answer.status, 202, answer.text);
    return answer.json;
  }

  /** One tab as `GET /api/tabs` shows it. */
  async tab(id) {
    return (await this.get('/api/tabs')).tabs.find((tab) => tab.id === id);
  }

  /** Waits until nothing runs in the tab; gives it. */
  idle(id, ms = 20_000) {
    return until(
      async () => {
        const tab = await this.tab(id);
        return ['idle', 'error'].includes(tab.status) && tab;
      },
      `tab ${id} to be idle`,
      ms,
    );
  }

  /** Sends a message and waits for the end of its turn; gives the turn. */
  async turn(tab, text, ms) {
    await this.send(tab, text);
    await this.idle(tab, ms);
    return this.lastTurn(tab);
  }

  async lastTurn(tab) {
    return (await this.get(`/api/tabs/${tab}/turns?limit=1`)).turns.at(-1);
  }

  /** Every row of a tab, read page by page and checked. */
  async log(tab) {
    const rows = [];
    for (;;) {
      // The first row by `before`, since seqs start at 1 and `after` is at least 1.
      const edge = rows.length ? `after=${rows.at(-1).seq}` : 'before=2';
      const page = await this.get(`/api/tabs/${tab}/chunks?limit=256&${edge}`);
      rows.push(...page.chunks);
      if (rows.length === 0 || rows.at(-1).seq >= page.total) break;
      assert.ok(page.chunks.length > 0, 'a page is never empty while rows exist');
    }
    checkLog(rows);
    return rows;
  }

  /** A WebSocket that said hello and checks every frame; see peer.mjs. */
  async peer(options = {}) {
    const peer = new Peer(this.url, { token: this.token, ...options });
    this.peers.push(peer);
    await peer.hello();
    return peer;
  }

  status() {
    return this.get('/api/status');
  }

  /** Sends a signal and waits for the end. */
  async signal(name, ms = 10_000) {
    if (this.running) process.kill(this.pid, name);
    const late = sleep(ms, 'late', { ref: false });
    const end = await Promise.race([this.ended, late]);
    assert.notEqual(end, 'late', `${name} did not end it within ${ms} ms`);
    return end;
  }

  stop() {
    return this.signal('SIGTERM');
  }

  kill() {
    return this.signal('SIGKILL');
  }

  /** Starts it again, with the same data and tokens. */
  async restart() {
    if (this.running) await this.stop();
    await this.#spawn();
  }

  async end() {
    this.peers.forEach((peer) => peer.drop());
    if (this.running) await this.kill();
    const faults = this.peers.map((peer) => peer.fault).filter(Boolean);
    assert.deepEqual(faults, [], 'a frame broke a promise');
    assert.doesNotMatch(this.stderr, /panicked|stack overflow/, 'nothing panics');
  }

  #proc(file) {
    return fs.readFileSync(`/proc/${this.pid}/${file}`, 'utf8');
  }

  /** Resident memory in bytes. */
  rss() {
    return Number(/VmRSS:\s+(\d+)/.exec(this.#proc('status'))[1]) * 1024;
  }

  threads() {
    return fs.readdirSync(`/proc/${this.pid}/task`).length;
  }

  /** Names and ids of the threads. */
  threadsByName() {
    const ids = fs.readdirSync(`/proc/${this.pid}/task`);
    return ids.map((id) => [this.#proc(`task/${id}/comm`).trim(), id]);
  }

  fds() {
    return fs.readdirSync(`/proc/${this.pid}/fd`).length;
  }
}

function childOf(pid) {
  const child = Number(fs.readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ')[0]);
  return child || pid;
}

/** What holds for every log, whatever happened. */
export function checkLog(rows) {
  const open = new Map();
  const parts = new Map();
  let turn;
  rows.forEach((row, at) => {
    assert.equal(row.seq, at + rows[0].seq, 'the log has no gaps');
    assert.equal(row.bytes, Buffer.byteLength(JSON.stringify(row.data)), `bytes of row ${row.seq}`);
    if (row.type !== 'error' && row.type !== 'system')
      assert.ok(row.bytes <= 16 * 1024, `row ${row.seq} is too big`);
    if (row.turnId !== turn) {
      assert.deepEqual([...open.keys()], [], `a call without a result in turn ${turn}`);
      turn = row.turnId;
    }
    const { data } = row;
    const block = data.block ?? (row.type === 'tool_result' ? data.callId : data.clientId);
    const key = `${row.turnId} ${row.step} ${row.type} ${block}`;
    if (block !== undefined && row.type !== 'system') {
      assert.equal(data.part ?? 0, parts.get(key) ?? 0, `part of row ${row.seq}`);
      parts.set(key, (data.part ?? 0) + 1);
    }
    if (row.type === 'tool_call') {
      if (data.cut) open.delete(data.callId);
      else open.set(data.callId, row.seq);
    }
    if (row.type === 'tool_result') {
      assert.ok(open.has(data.callId), `a result without a call in row ${row.seq}`);
      if (data.isError !== undefined) open.delete(data.callId);
    }
  });
  return open;
}

/** The text of a log's rows of one type, parts joined. */
export function textOf(rows, role = 'assistant', type = 'text') {
  return rows
    .filter((row) => row.role === role && row.type === type)
    .map((row) => row.data.text)
    .join('');
}
