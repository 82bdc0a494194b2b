// HTTP by hand: for heads that no client would send, and for all that depends on when a byte arrives.

import net from 'node:net';

/** A connection to `port` on loopback, which keeps what it received in `text`. */
export class Raw {
  text = '';
  ended = false;

  static async connect(port, host = '127.0.0.1') {
    const raw = new Raw();
    raw.socket = net.connect(port, host);
    raw.socket.on('data', (bytes) => {
      raw.text += bytes.toString('latin1');
      raw.onData?.();
    });
    raw.socket.on('error', (fault) => {
      raw.fault = fault;
    });
    raw.closed = new Promise((done) =>
      raw.socket.once('close', () => {
        raw.ended = true;
        raw.onData?.();
        done();
      }),
    );
    await new Promise((done, fail) => {
      raw.socket.once('connect', done);
      raw.socket.once('error', fail);
    });
    return raw;
  }

  write(bytes) {
    this.socket.write(bytes);
    return this;
  }

  /** Waits for `pattern` in what was received, or for the end. */
  async see(pattern, ms = 5_000) {
    const found = () => pattern.test(this.text) || this.ended;
    if (!found()) {
      await new Promise((done) => {
        const late = setTimeout(done, ms);
        this.onData = () => {
          if (found()) {
            clearTimeout(late);
            done();
          }
        };
      });
    }
    return this.text;
  }

  /** Waits for the other side to end the connection; false if it did not. */
  async end(ms = 5_000) {
    let late;
    const timeout = new Promise((done) => {
      late = setTimeout(() => done(false), ms);
    });
    const ended = await Promise.race([this.closed.then(() => true), timeout]);
    clearTimeout(late);
    return ended;
  }

  close() {
    this.socket.destroy();
  }
}

/**
 * Sends `bytes` on a new connection; gives the status of the first answer, and whether the connection then
 * ended.
 */
export async function ask(port, bytes, { ms = 3_000, wait = 200 } = {}) {
  const raw = await Raw.connect(port);
  raw.write(bytes);
  await raw.see(/\r\n\r\n/, ms);
  const ended = await raw.end(wait);
  raw.close();
  const status = Number(/^HTTP\/1\.[01] (\d{3}) /.exec(raw.text)?.[1] ?? 0);
  return { status, ended, text: raw.text };
}
