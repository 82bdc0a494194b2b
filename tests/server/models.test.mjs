// What models take, as the provider's list tells it: shown, obeyed in requests, and no hindrance when it
// fails.

import assert from 'node:assert/strict';
import test from 'node:test';
import { Siskin } from '../fixture.mjs';
import { Provider, refuse } from '../provider.mjs';

const yes = { supported: true };
const no = { supported: false };

/** A model as the Messages API lists it. */
const claude = (id, { efforts = [], adaptive = yes, enabled = no, ...more } = {}) => ({
  type: 'model',
  id,
  max_input_tokens: 200_000,
  max_tokens: 64_000,
  capabilities: {
    effort: Object.fromEntries(
      ['low', 'medium', 'high', 'max'].map((one) => [one, efforts.includes(one) ? yes : no]),
    ),
    thinking: { ...yes, types: { adaptive, enabled } },
  },
  ...more,
});

async function served(t, models, options = {}) {
  const provider = await Provider.start({ models });
  t.after(() => provider.stop());
  return { provider, siskin: await Siskin.start(t, { provider, ...options }) };
}

const lists = (provider) => provider.requests.filter((request) => request.method === 'GET');

/** The body of the last request for an answer, after one more message. */
async function sent(siskin, provider, tab, message = 'hi') {
  await siskin.turn(tab.id, message);
  return provider.asked.at(-1).json;
}

test('contexts and efforts are shown as the list tells them', async (t) => {
  const { siskin, provider } = await served(t, [
    claude('scripted', { efforts: ['low', 'high'] }),
    { id: 'other', context_length: 8192, supported_parameters: ['tools'] },
  ]);
  const { models, errors } = await siskin.get('/api/models');
  const told = Object.fromEntries(models.map((one) => [one.id, [one.contextTokens, one.efforts]]));
  assert.deepEqual(told, {
    'a/scripted': [200_000, ['low', 'high']],
    'a/other': [8192, undefined],
    'o/scripted': [200_000, ['low', 'high']],
    'o/other': [8192, undefined],
  });
  assert.deepEqual(errors, []);
  await siskin.get('/api/models');
  assert.equal(lists(provider).length, 2, 'one list for each provider');
});

test('an effort is taken by the words of the model and sent as each wire names it', async (t) => {
  const { siskin, provider } = await served(t, [claude('scripted', { efforts: ['low', 'high'] }), 'other']);
  await siskin.get('/api/models');
  const wrong = await siskin.api('POST', '/api/tabs', { model: 'a/scripted', effort: 'loud' });
  assert.equal(wrong.status, 400);
  assert.match(wrong.json.error.message, /null or one of none, minimal, low, medium, high, xhigh, max/);
  const tab = await siskin.newTab({ model: 'a/scripted', effort: 'high' });
  assert.equal(tab.effort, 'high');
  const foreign = await siskin.api('PATCH', `/api/tabs/${tab.id}`, { effort: 'medium' });
  assert.equal(foreign.status, 400);
  assert.match(foreign.json.error.message, /a\/scripted takes: low, high/);
  assert.deepEqual((await sent(siskin, provider, tab)).output_config, { effort: 'high' });
  assert.equal((await siskin.api('PATCH', `/api/tabs/${tab.id}`, { model: 'o/scripted' })).status, 200);
  assert.equal((await sent(siskin, provider, tab)).reasoning_effort, 'high');
  const none = await siskin.api('PATCH', `/api/tabs/${tab.id}`, { effort: null });
  assert.equal(none.json.effort, undefined);
  assert.equal((await sent(siskin, provider, tab)).reasoning_effort, undefined);
});

test('an effort that the new model does not take stays with the tab and out of the request', async (t) => {
  const { siskin, provider } = await served(t, [claude('scripted', { efforts: ['high'] }), claude('other')]);
  const tab = await siskin.newTab({ model: 'a/scripted', effort: 'high' });
  await sent(siskin, provider, tab);
  const changed = await siskin.api('PATCH', `/api/tabs/${tab.id}`, { model: 'a/other' });
  assert.equal(changed.json.effort, 'high');
  assert.equal((await sent(siskin, provider, tab)).output_config, undefined);
  const both = await siskin.api('PATCH', `/api/tabs/${tab.id}`, { model: 'a/other', effort: 'high' });
  assert.match(both.json.error.message, /takes no effort/);
});

test('thinking is asked for as the list says, and not at all where nobody tells', async (t) => {
  const { siskin, provider } = await served(t, [
    claude('scripted'),
    claude('other', { adaptive: no, enabled: yes }),
  ]);
  const tab = await siskin.newTab({ model: 'a/scripted' });
  assert.deepEqual((await sent(siskin, provider, tab)).thinking, { type: 'adaptive', display: 'summarized' });
  await siskin.api('PATCH', `/api/tabs/${tab.id}`, { model: 'a/other' });
  assert.deepEqual((await sent(siskin, provider, tab)).thinking, { type: 'enabled', budget_tokens: 8000 });
  await siskin.api('PATCH', `/api/tabs/${tab.id}`, { model: 'a/unlisted' });
  const plain = await sent(siskin, provider, tab);
  assert.deepEqual([plain.thinking, plain.temperature, plain.top_p], [undefined, undefined, undefined]);
  assert.equal(lists(provider).length, 1, 'turns ask once an hour');
});

test('no more tokens are asked for than the model gives, the config says or the context holds', async (t) => {
  const { siskin, provider } = await served(
    t,
    [claude('scripted', { max_tokens: 4000 }), { id: 'other', meta: { n_ctx: 4096, n_ctx_train: 131_072 } }],
    { providerConfig: 'max_tokens = 9000' },
  );
  const tab = await siskin.newTab({ model: 'a/scripted' });
  assert.equal((await sent(siskin, provider, tab)).max_tokens, 4000);
  await siskin.api('PATCH', `/api/tabs/${tab.id}`, { model: 'o/other' });
  assert.equal((await sent(siskin, provider, tab)).max_tokens, 2048);
  await siskin.api('PATCH', `/api/tabs/${tab.id}`, { model: 'o/unlisted' });
  assert.equal((await sent(siskin, provider, tab)).max_tokens, 9000);
});

test('context_tokens of the config wins over the list', async (t) => {
  const { siskin } = await served(t, [claude('scripted'), 'other'], {
    providerConfig: 'context_tokens = 5000',
  });
  const { models } = await siskin.get('/api/models');
  assert.deepEqual(new Set(models.map((one) => one.contextTokens)), new Set([5000]));
});

test('a list that fails hinders no turn and is not asked for again at once', async (t) => {
  const { siskin, provider } = await served(t, []);
  provider.list = refuse(500, { error: { message: 'no list' } });
  const tab = await siskin.newTab({ model: 'o/scripted' });
  await sent(siskin, provider, tab);
  await sent(siskin, provider, tab);
  assert.equal(lists(provider).length, 1);
  const { models, errors } = await siskin.get('/api/models');
  assert.equal(models.length, 4, 'the config names them');
  assert.deepEqual(errors, []);
});

test('a list that never comes delays a turn by a few seconds once', async (t) => {
  const { siskin, provider } = await served(t, []);
  provider.list = (exchange) => exchange.silent();
  const tab = await siskin.newTab({ model: 'o/scripted' });
  const begun = Date.now();
  await sent(siskin, provider, tab);
  const took = Date.now() - begun;
  assert.ok(took > 4000 && took < 9000, `${took} ms`);
  const again = Date.now();
  await sent(siskin, provider, tab);
  assert.ok(Date.now() - again < 3000);
});

test('stop ends the wait for the list', async (t) => {
  const { siskin, provider } = await served(t, []);
  provider.list = (exchange) => exchange.silent();
  const tab = await siskin.newTab({ model: 'o/scripted' });
  await siskin.send(tab.id, 'hi');
  while (lists(provider).length === 0) await new Promise((done) => setTimeout(done, 10));
  const begun = Date.now();
  assert.equal((await siskin.api('POST', `/api/tabs/${tab.id}/stop`)).status, 202);
  await siskin.idle(tab.id);
  assert.ok(Date.now() - begun < 1000, `${Date.now() - begun} ms`);
  assert.equal(provider.asked.length, 0);
  provider.list = undefined;
  provider.models = [claude('scripted', { max_tokens: 77 })];
  assert.equal((await sent(siskin, provider, tab)).max_tokens, 77, 'a stop is no failure of the list');
});

test('a context that a refusal names makes the answer smaller and is shown from then on', async (t) => {
  const { siskin, provider } = await served(t, ['scripted', 'other']);
  const message =
    "'max_tokens' or 'max_completion_tokens' is too large: 16000. This model's maximum context length is " +
    '8192 tokens and your request has 30 input tokens (16000 > 8192 - 30).';
  provider.answers.push(refuse(400, { error: { message, type: 'BadRequestError', code: 400 } }));
  const tab = await siskin.newTab({ model: 'o/scripted' });
  const body = await sent(siskin, provider, tab);
  assert.equal(body.max_tokens, 4096);
  assert.equal(provider.asked.length, 2);
  const { models } = await siskin.get('/api/models');
  assert.equal(models.find((one) => one.id === 'o/scripted').contextTokens, 8192);
  assert.ok((await siskin.log(tab.id)).every((row) => row.type !== 'error'));
});
