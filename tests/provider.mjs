// The scripted provider: a model's API on raw sockets, which does what the script says and keeps every byte
// it was sent.
//
// It speaks both wires at once (`/v1/messages` and `/v1/chat/completions`), checks each request as the real
// API does (strict.mjs), and then takes the next answer from `answers`, else `always`. An answer is a
// function of `(exchange)`; the helpers below make the usual ones.

import { isUtf8 } from 'node:buffer';
import { spawn } from 'node:child_process';
import net from 'node:net';
import tls from 'node:tls';
import { setTimeout as sleep } from 'node:timers/promises';
import { Bindings, checkAnthropic, checkOpenai } from './strict.mjs';
import { encode, events, text } from './speech.mjs';

export * from './speech.mjs';

/** One request and the means to answer it, byte by byte if need be. */
export class Exchange {
  constructor(socket, provider) {
    this.socket = socket;
    this.provider = provider;
    this.closed = new Promise((done) => socket.once('close', done));
    this.gone = false;
    this.closed.then(() => {
      this.gone = true;
    });
  }

  /** Sends bytes as they are. */
  async raw(bytes) {
    if (this.gone) return;
    if (!this.socket.write(bytes)) {
      await Promise.race([new Promise((done) => this.socket.once('drain', done)), this.closed]);
    }
  }

  /** Sends a head. Without `length` the body is chunked, or ends with the connection if `close` is set. */
  async head({ status = 200, headers = {}, length, close = false } = {}) {
    this.framed = length === undefined && !close;
    const all = {
      'content-type': 'text/event-stream; charset=utf-8',
      'request-id': 'req_test',
      ...headers,
    };
    if (this.framed) all['transfer-encoding'] = 'chunked';
    if (length !== undefined) all['content-length'] = length;
    all.connection = 'close';
    const lines = Object.entries(all).map(([name, value]) => `${name}: ${value}\r\n`);
    await this.raw(`HTTP/1.1 ${status} Scripted\r\n${lines.join('')}\r\n`);
  }

  /** Sends a piece of the body. */
  async body(bytes) {
    const buffer = Buffer.from(bytes);
    if (buffer.length === 0) return;
    if (!this.framed) return this.raw(buffer);
    await this.raw(
      Buffer.concat([Buffer.from(`${buffer.length.toString(16)}\r\n`), buffer, Buffer.from('\r\n')]),
    );
  }

  /** Ends the body and the connection as one should. */
  end() {
    if (!this.gone) this.socket.end(this.framed ? '0\r\n\r\n' : '');
  }

  /** Ends the connection in the middle, in good order (FIN). */
  close() {
    this.socket.end();
  }

  /** Ends the connection with a reset (RST). */
  reset() {
    this.socket.resetAndDestroy();
  }

  /** Says nothing more until the other side goes away. */
  async silent() {
    await this.closed;
  }
}

/**
 * An answer that speaks `parts` (or what a function of the exchange gives: thinking has to be fresh in each
 * answer); see speech.mjs for those, `stream` for the rest of the options. `change` makes another list of the
 * events.
 */
export const say =
  (parts, options = {}) =>
  async (exchange) => {
    const given = typeof parts === 'function' ? parts(exchange) : parts;
    const spoken = typeof given === 'string' ? [text(given)] : given;
    for (const part of spoken) {
      const signature = part.signature ?? part.redacted;
      if (signature) exchange.provider.bindings.bind(signature, exchange.json);
    }
    const { cache } = exchange.provider;
    const { wire, json, text: sent } = exchange;
    if (cache) exchange.cached = wire === 'anthropic' ? cache.use(json) : cache.useChat(sent);
    const usage = { ...exchange.cached, ...options.usage };
    const list = events(exchange.wire, spoken, { ...options, usage });
    await stream(exchange, encode(options.change?.(list) ?? list, options), options);
  };

/** An answer of a status and a JSON body. */
export const refuse =
  (status, body, headers = {}) =>
  async (exchange) => {
    const bytes = Buffer.from(typeof body === 'string' ? body : JSON.stringify(body));
    const type = typeof body === 'string' ? 'text/html' : 'application/json';
    await exchange.head({ status, headers: { 'content-type': type, ...headers }, length: bytes.length });
    await exchange.body(bytes);
    exchange.end();
  };

/** An answer that takes the request and never says a word. */
export const mute = () => (exchange) => exchange.silent();

/**
 * Sends a stream's bytes. `split`: bytes a write, or a list of offsets; `pauseMs` between writes; `cutAt`:
 * byte after which
 * `then` happens (`close`, `reset`, `silent`, or a function) instead of the rest.
 */
export async function stream(
  exchange,
  bytes,
  { split = 0, pauseMs = 0, cutAt, then = 'close', ...head } = {},
) {
  await exchange.head(head);
  const upto = cutAt ?? bytes.length;
  const cuts = Array.isArray(split) ? split : split > 0 ? range(split, upto, split) : [];
  let from = 0;
  for (const to of [...cuts.filter((cut) => cut < upto), upto]) {
    await exchange.body(bytes.subarray(from, to));
    from = to;
    if (pauseMs) await sleep(pauseMs);
    if (exchange.gone) return;
  }
  if (cutAt === undefined) return exchange.end();
  if (typeof then === 'function') return then(exchange);
  // What was written has to be on its way before the connection ends under it.
  if (then === 'reset') await sleep(20);
  await exchange[then]();
}

function range(from, to, step) {
  const out = [];
  for (let at = from; at < to; at += step) out.push(at);
  return out;
}

/** The largest body that is taken: 32 MB. */
const BODY_BYTES_MAX = 32 * 1024 * 1024;

/** What is wrong with a request's bytes, whatever they say. */
function framing({ bytes, headers, surplus }) {
  if (!/^\d+$/.test(headers['content-length'] ?? ''))
    return { status: 411, message: 'content-length: required' };
  if ('transfer-encoding' in headers) return { status: 400, message: 'content-length and chunks at once' };
  if (surplus > 0) return { status: 400, message: `${surplus} bytes come after the body` };
  if (bytes.length > BODY_BYTES_MAX) return { status: 413, message: 'Request exceeds the maximum size' };
  if (!isUtf8(bytes)) return { status: 400, message: 'the body is not UTF-8' };
  return null;
}

/** A running scripted provider. */
export class Provider {
  requests = [];
  answers = [];
  always = say('ok');
  bindings = new Bindings();
  strict = true;
  key = 'test-key';
  /** Names, or entries as a provider lists them; `list` answers instead, if it is set. */
  models = ['scripted', 'other'];
  openai = {};
  /** A simulated prompt cache (cache.mjs): then `say` tells its usage. */
  cache;
  #server;
  #sockets = new Set();
  #waiters = [];
  /** Connections that came, also those which never sent a request. */
  connections = 0;
  /** The same, counted before any TLS handshake. */
  arrived = 0;

  static async start(options = {}) {
    const provider = Object.assign(new Provider(), options);
    const accept = (socket) => provider.#accept(socket);
    provider.#server = options.tls
      ? tls.createServer({ noDelay: true, ...options.tls }, accept)
      : net.createServer({ noDelay: true }, accept);
    // Every connection that comes, also those that never finish a handshake.
    provider.#server.on('connection', (socket) => {
      provider.arrived += 1;
      provider.#sockets.add(socket.on('close', () => provider.#sockets.delete(socket)));
    });
    await new Promise((done) => provider.#server.listen(0, '127.0.0.1', done));
    provider.port = provider.#server.address().port;
    provider.url = `${options.tls ? 'https' : 'http'}://127.0.0.1:${provider.port}`;
    return provider;
  }

  /** Ends the listener and every connection. */
  async stop() {
    for (const socket of this.#sockets) socket.destroy();
    if (this.#server.listening) await new Promise((done) => this.#server.close(done));
  }

  /** The requests for answers, without the model lists. */
  get asked() {
    return this.requests.filter((request) => request.method === 'POST');
  }

  /** The next exchange for an answer, even one that is already there but was not yet taken by this call. */
  async next(ms = 10_000) {
    this.taken ??= 0;
    const deadline = Date.now() + ms;
    while (this.asked.length <= this.taken) {
      if (Date.now() > deadline) throw new Error('the provider was not asked');
      await sleep(5);
    }
    this.taken += 1;
    return this.asked[this.taken - 1];
  }

  #accept(socket) {
    this.connections += 1;
    this.#sockets.add(socket);
    socket.on('error', () => {});
    socket.on('close', () => this.#sockets.delete(socket));
    if (this.onConnect?.(socket) === false) return;
    const protocol = socket.getProtocol?.();
    let held = Buffer.alloc(0);
    let exchange;
    socket.on('data', (bytes) => {
      if (exchange?.started) exchange.fault ??= { status: 400, message: 'bytes come after the body' };
      held = Buffer.concat([held, bytes]);
      exchange ??= this.#head(socket, held);
      if (!exchange || exchange.started) return;
      const body = held.subarray(exchange.bodyAt);
      if (body.length < exchange.length) return;
      exchange.started = true;
      exchange.protocol = protocol;
      exchange.surplus = body.length - exchange.length;
      exchange.bytes = body.subarray(0, exchange.length);
      this.#answer(exchange).catch((fault) => {
        this.fault = fault;
        socket.destroy();
      });
    });
  }

  #head(socket, held) {
    const end = held.indexOf('\r\n\r\n');
    if (end < 0) return undefined;
    const [line, ...fields] = held.subarray(0, end).toString('latin1').split('\r\n');
    const exchange = new Exchange(socket, this);
    [exchange.method, exchange.path] = line.split(' ');
    exchange.headers = Object.fromEntries(
      fields.map((field) => {
        const colon = field.indexOf(':');
        return [field.slice(0, colon).toLowerCase(), field.slice(colon + 1).trim()];
      }),
    );
    exchange.bodyAt = end + 4;
    exchange.length = Number(exchange.headers['content-length'] ?? 0);
    exchange.at = Date.now();
    return exchange;
  }

  async #answer(exchange) {
    exchange.wire = /\/messages$/.test(exchange.path) ? 'anthropic' : 'openai';
    exchange.text = exchange.bytes.toString('utf8');
    this.requests.push(exchange);
    if (exchange.method === 'GET') return this.#list(exchange);
    exchange.fault = this.#read(exchange);
    if (exchange.fault) {
      const { status, message } = exchange.fault;
      const types = { 401: 'authentication_error', 413: 'request_too_large' };
      const type = types[status] ?? 'invalid_request_error';
      return refuse(status, { type: 'error', error: { type, message } })(exchange);
    }
    await (this.answers.shift() ?? this.always)(exchange);
  }

  #read(exchange) {
    const fault = this.strict ? framing(exchange) : null;
    try {
      exchange.json = JSON.parse(exchange.text);
    } catch {
      return fault ?? { status: 400, message: 'the body is not JSON' };
    }
    return this.strict ? (fault ?? this.#check(exchange)) : null;
  }

  #check({ wire, headers, json, path }) {
    if (!/^\/v1\/(messages|chat\/completions)$/.test(path)) return { status: 404, message: 'Not Found' };
    const key =
      wire === 'anthropic' ? headers['x-api-key'] : headers.authorization?.replace(/^Bearer /, '');
    if (this.key && key !== this.key) return { status: 401, message: 'invalid x-api-key' };
    if (!/^application\/json/.test(headers['content-type'] ?? ''))
      return { status: 415, message: 'content-type' };
    if (wire === 'openai') return checkOpenai(json, this.openai);
    if (headers['anthropic-version'] !== '2023-06-01')
      return { status: 400, message: 'anthropic-version: required' };
    return checkAnthropic(json, this.bindings);
  }

  async #list(exchange) {
    if (this.list) return this.list(exchange);
    const data = this.models.map((one) =>
      typeof one === 'string' ? { id: one, type: 'model', object: 'model', display_name: one } : one,
    );
    await refuse(200, { object: 'list', data, has_more: false })(exchange);
  }
}

/** A listener whose backlog is full, so that a connect to it never ends; gives `{port, stop}`. */
export async function deafPort() {
  // Node accepts at once, so the listener is one that nobody reads.
  const script =
    'import socket,time;s=socket.socket();s.bind(("127.0.0.1",0));s.listen(0);' +
    'print(s.getsockname()[1],flush=True);time.sleep(600)';
  const child = spawn('python3', ['-c', script], { stdio: ['ignore', 'pipe', 'inherit'] });
  const port = Number(await new Promise((done) => child.stdout.once('data', done)));
  const fill = Array.from({ length: 4 }, () => net.connect(port, '127.0.0.1').on('error', () => {}));
  await sleep(200);
  return {
    port,
    stop() {
      fill.forEach((socket) => socket.destroy());
      child.kill('SIGKILL');
    },
  };
}
