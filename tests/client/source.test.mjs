// The client's files: what the build, the policy and the reader rely on.
import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { createHash } from 'node:crypto';
import test from 'node:test';
import { gzipSync } from 'node:zlib';

const ROOT = new URL('../../static/', import.meta.url);
const names = readdirSync(ROOT, { recursive: true }).filter((name) => /\.(js|css|html|svg)$/.test(name));
const source = (name) => readFileSync(new URL(name, ROOT), 'utf8');
const own = names.filter((name) => !name.startsWith('vendor/'));
const scripts = own.filter((name) => name.endsWith('.js'));

/** As `build.rs` embeds it. */
function slim(name) {
  const text = source(name);
  if (name.startsWith('vendor/') || !/\.(js|css)$/.test(name)) return text;
  let comment = false;
  let out = '';
  for (const line of text.split('\n').map((one) => one.trim())) {
    comment ||= line.startsWith('/*');
    if (!comment && line && !line.startsWith('//')) out += `${line}\n`;
    comment &&= !line.endsWith('*/');
  }
  if (!name.endsWith('.css')) return out;
  const shorter = [
    ['\n', ' '],
    [': ', ':'],
    ['; ', ';'],
    [', ', ','],
    [' {', '{'],
    ['{ ', '{'],
    ['} ', '}'],
    [';}', '}'],
  ];
  return shorter.reduce((css, [from, to]) => css.replaceAll(from, to), out);
}

test('the whole client, vendored code included, is at most 60 KB of gzip', () => {
  const bytes = names.reduce((sum, name) => sum + gzipSync(slim(name), { level: 9 }).length, 0);
  assert.ok(bytes <= 60_000, `${bytes} bytes`);
});

test('no string of a style holds what shortening would change', () => {
  for (const name of own.filter((one) => one.endsWith('.css')))
    for (const [string] of source(name).matchAll(/"[^"\n]*"/g)) assert.doesNotMatch(string, /[:;,{}] | \{/, name);
});

test('no string goes over several lines, so that lines may be trimmed', () => {
  for (const name of scripts) {
    source(name)
      .split('\n')
      .forEach((line, i) => {
        const code = line
          .replace(/\\./g, '')
          .replace(/^\s*(\/\/|\*|\/\*).*/, '')
          .replace(/\/[^/\s]*`[^/\s]*\//g, '');
        assert.equal((code.match(/`/g) || []).length % 2, 0, `${name}:${i + 1}`);
      });
  }
});

test('no comment ends amid a line of code, so that whole lines may go', () => {
  for (const name of own) {
    source(name)
      .split('\n')
      .forEach((line, i) => {
        const at = line.indexOf('*/');
        if (at >= 0) assert.equal(line.slice(at + 2).trim(), '', `${name}:${i + 1}`);
      });
  }
});

test('no script makes HTML of text, runs text, or needs a secure context', () => {
  const forbidden =
    /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|randomUUID|crypto\.subtle/;
  for (const name of scripts) assert.doesNotMatch(source(name), forbidden, name);
});

test('the page holds no inline script or style, and asks nothing of another host', () => {
  const page = source('index.html');
  assert.doesNotMatch(page, /<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)/);
  for (const name of own) {
    const found = source(name).match(/(?:src|href|url\(|from|import\()\s*=?\s*["']https?:/);
    assert.equal(found, null, name);
  }
});

test('every module that the page needs at once is preloaded, and every preload exists', () => {
  const page = source('index.html');
  const preloaded = [...page.matchAll(/modulepreload" href="([^"]+)"/g)].map((found) => found[1]);
  for (const name of preloaded) assert.ok(names.includes(name), name);
  const needed = new Set();
  const visit = (name) => {
    for (const [, inline, below] of source(name).matchAll(/^import .*?from '(.+?)';|^\} from '(.+?)';/gm)) {
      const path = inline || below;
      const next = new URL(path, new URL(name, 'http://x/')).pathname.slice(1);
      if (needed.has(next)) continue;
      needed.add(next);
      visit(next);
    }
  };
  visit('main.js');
  assert.deepEqual([...needed].sort(), preloaded.sort());
});

test('vendored code is what its README says', () => {
  const sum = createHash('sha256')
    .update(readFileSync(new URL('vendor/marked.js', ROOT)))
    .digest('hex');
  assert.ok(readFileSync(new URL('vendor/README.md', ROOT), 'utf8').includes(sum));
});
