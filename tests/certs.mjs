// A certificate authority for tests, made by openssl in a folder of the test, and a clock that is wrong.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';

const DAY = 24 * 3600 * 1000;

/** A time as openssl wants it, such as `20261130000000Z`. */
const stamp = (ms) => `${new Date(ms).toISOString().replace(/[-:T]|\..*/g, '')}Z`;

/** An authority whose `pem` is a file. */
export class Authority {
  #made = 0;

  constructor(dir, name = 'Test authority') {
    this.dir = fs.mkdtempSync(path.join(dir, 'ca-'));
    this.pem = path.join(this.dir, 'ca.pem');
    this.#write('index', '');
    this.#write(
      'openssl.cnf',
      [
        '[ca]\ndefault_ca = all',
        '[all]',
        `new_certs_dir = ${this.dir}`,
        `database = ${path.join(this.dir, 'index')}`,
        'default_md = sha256\npolicy = any\nunique_subject = no\nrand_serial = yes\ncopy_extensions = none',
        '[any]\ncommonName = supplied',
        '[req]\ndistinguished_name = who\nprompt = no\n[who]\ncommonName = overridden',
        '[authority]\nbasicConstraints = critical, CA:TRUE\nkeyUsage = critical, keyCertSign',
        'subjectKeyIdentifier = hash',
      ].join('\n'),
    );
    this.#key('ca.key');
    this.#openssl(
      ...['req', '-x509', '-new', '-config', 'openssl.cnf', '-extensions', 'authority', '-days', '3650'],
      ...['-key', 'ca.key', '-subj', `/CN=${name}`, '-out', 'ca.pem'],
    );
  }

  /**
   * A server's `{key, cert}` for `names` (`DNS:…`, `IP:…`), valid between two times in ms. `self`: signed by
   * itself instead; `isCa`: as an authority, which is what `openssl req -x509` makes unasked.
   */
  issue({
    names = ['DNS:localhost', 'IP:127.0.0.1'],
    from = Date.now() - DAY,
    to = Date.now() + DAY,
    self = false,
    isCa = false,
  } = {}) {
    this.#made += 1;
    const name = `leaf${this.#made}`;
    this.#write(
      `${name}.ext`,
      [
        `basicConstraints = critical, CA:${isCa ? 'TRUE' : 'FALSE'}`,
        names.length ? `subjectAltName = ${names.join(', ')}` : '',
      ].join('\n'),
    );
    this.#key(`${name}.key`);
    this.#openssl(
      ...['req', '-new', '-config', 'openssl.cnf', '-key', `${name}.key`],
      ...['-subj', `/CN=${name}`, '-out', `${name}.csr`],
    );
    const signer = self
      ? ['-selfsign', '-keyfile', `${name}.key`]
      : ['-cert', 'ca.pem', '-keyfile', 'ca.key'];
    this.#openssl(
      ...['ca', '-batch', '-notext', '-config', 'openssl.cnf', ...signer, '-in', `${name}.csr`],
      ...['-out', `${name}.pem`, '-extfile', `${name}.ext`],
      ...['-startdate', stamp(from), '-enddate', stamp(to)],
    );
    const read = (kind) => fs.readFileSync(path.join(this.dir, `${name}.${kind}`), 'utf8');
    return { key: read('key'), cert: read('pem'), file: path.join(this.dir, `${name}.pem`) };
  }

  #key(name) {
    this.#openssl('ecparam', '-name', 'prime256v1', '-genkey', '-noout', '-out', name);
  }

  #write(name, text) {
    fs.writeFileSync(path.join(this.dir, name), `${text}\n`.replace(/^\n$/, ''));
  }

  #openssl(...words) {
    execFileSync('openssl', words, { cwd: this.dir, stdio: ['ignore', 'ignore', 'pipe'] });
  }
}

const CLOCK = `
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
  int result = syscall(SYS_clock_gettime, id, now);
  if (result == 0 && id == CLOCK_REALTIME) now->tv_sec += atol(getenv("CLOCK_SHIFT_S"));
  return result;
}
`;

/** The environment of a program whose clock shows `ms` now: the real one, moved, by a library made here. */
export function clockAt(dir, ms) {
  const [source, library] = [path.join(dir, 'clock.c'), path.join(dir, 'clock.so')];
  fs.writeFileSync(source, CLOCK);
  execFileSync('cc', ['-shared', '-fPIC', '-o', library, source]);
  const env = { LD_PRELOAD: library, CLOCK_SHIFT_S: String(Math.round((ms - Date.now()) / 1000)) };
  const shown = Number(execFileSync('date', ['+%s'], { env: { ...process.env, ...env } })) * 1000;
  assert.ok(Math.abs(shown - ms) < 5000, 'the library moves the clock');
  return env;
}
