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

const packed = (name) => gzipSync(slim(name), { level: 9 }).length;
const sum = (all) => all.reduce((bytes, name) => bytes + packed(name), 0);

/** The modules that `names` import statically, themselves included. */
function graph(...from) {
  const found = new Set();
  const visit = (name) => {
    if (found.has(name)) return;
    found.add(name);
    for (const [, inline, below] of source(name).matchAll(/^import .*?from '(.+?)';|^\} from '(.+?)';/gm)) {
      visit(new URL(inline || below, new URL(name, 'http://x/')).pathname.slice(1));
    }
  };
  from.forEach(visit);
  return found;
}

/** What the page names, what that needs, and the pictures of its style. */
const visit = new Set([
  'index.html',
  ...[...source('index.html').matchAll(/(?:href|src)="([^"#]+)"/g)].map((found) => found[1]),
  ...[...source('style/siskin.css').matchAll(/url\("([^"]+)"\)/g)].map((found) => `style/${found[1]}`),
  ...graph('main.js'),
]);
const later = names.filter((name) => !visit.has(name));

test('what a visit loads, vendored code included, is at most 58 KB of gzip, and all there is 75 KB', (t) => {
  t.diagnostic(`a visit: ${sum([...visit])} bytes of gzip in ${visit.size} files`);
  for (const name of later) t.diagnostic(`later: ${name} ${packed(name)}`);
  t.diagnostic(`all: ${sum(names)} bytes of gzip in ${names.length} files`);
  assert.ok(sum([...visit]) <= 58_000, `a visit loads ${sum([...visit])} bytes`);
  // Once in a browser's life: the pairing, and the empty tab behind it.
  const pairs = [...new Set([...visit, ...graph('view/pairing.js', 'view/empty.js'), 'style/later.css'])];
  t.diagnostic(`a visit that pairs: ${sum(pairs)} bytes of gzip`);
  assert.ok(sum(pairs) <= 64_000, `a visit that pairs loads ${sum(pairs)} bytes`);
  assert.ok(sum(names) <= 75_000, `all there is are ${sum(names)} bytes`);
});

test('each script and style is loaded at once or by name later, and no page waits for over 9 KB', () => {
  const wanted = scripts.flatMap((name) =>
    [...source(name).matchAll(/\blater\('(\w+)'\)/g)].map((found) => `view/${found[1]}.js`),
  );
  const reached = new Set([...graph(...wanted), 'style/later.css']);
  const loaded = later.filter((name) => /\.(js|css)$/.test(name));
  assert.deepEqual(
    loaded.filter((name) => !reached.has(name)),
    [],
    'nobody asks for it',
  );
  for (const name of wanted) {
    const more = [...graph(name)].filter((one) => !visit.has(one)).concat('style/later.css');
    assert.ok(sum(more) <= 9_000, `${name} loads ${sum(more)} bytes`);
  }
});

test('no string of a style holds what shortening would change', () => {
  for (const name of own.filter((one) => one.endsWith('.css')))
    for (const [string] of source(name).matchAll(/"[^"\n]*"/g)) {
      assert.doesNotMatch(string, /[:;,{}] | \{/, name);
    }
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
  const html = /innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc/;
  const rest = /\beval\(|new Function|randomUUID|crypto\.subtle/;
  for (const name of scripts) {
    assert.doesNotMatch(source(name), html, name);
    assert.doesNotMatch(source(name), rest, name);
  }
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
  const needed = [...graph('main.js')].filter((name) => name !== 'main.js');
  assert.deepEqual(needed.sort(), preloaded.sort());
});

test('vendored code is what its README says', () => {
  const sum = createHash('sha256')
    .update(readFileSync(new URL('vendor/marked.js', ROOT)))
    .digest('hex');
  assert.ok(readFileSync(new URL('vendor/README.md', ROOT), 'utf8').includes(sum));
});
