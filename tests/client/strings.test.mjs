// Words: what a provider's failure means for the owner, by the wordings that src/agent/provider/http.rs has
// for them.
import assert from 'node:assert/strict';
import test from 'node:test';
import { clock, span } from '../../static/core/format.js';
import { meaning as meant } from '../../static/view/meaning.js';

const meaning = (message, status) => meant({ message, status }).title;

// Bug: the patterns were made of providers' words, not of the server's. Effect: a stream that broke off was
// "Something went wrong", a spent quota told by a 429 "no room", and a refused connection the same as
// nothing. Mend: the server's own wordings, the special before the general.
test('every failure of a provider has its meaning', () => {
  for (const [message, wanted] of [
    ['provider a refused the key (401): invalid x-api-key; check the file', /key/],
    ['the quota or credit of provider a is spent (429): insufficient_quota', /paid/],
    ['the quota or credit of provider a is spent (402)', /paid/],
    ['provider a asks to slow down (429): rate limit', /no room/],
    ['provider a answered 529: overloaded', /no room/],
    ['provider a answered 500: internal', /fault of its own/],
    ['the provider reported an error: api_error', /fault of its own/],
    ['provider a does not know this model or URL (404); check the name', /does not know this model/],
    ['the conversation is longer than the context of provider a\'s model (400)', /too long/],
    ['the connection to provider a broke off: Peer disconnected', /broke off/],
    ['provider a fell silent in the middle of its answer (idle_s is 90 s)', /broke off/],
    ['provider a refused the connection at http://x: is it running?', /cannot be reached/],
    ['the name of provider a was not found (http://x): check base_url', /cannot be reached/],
    ['no route to provider a at http://x: check this device\'s network', /cannot be reached/],
    ['no connection to provider a in time', /cannot be reached/],
    ['no secure connection to provider a: UnknownIssuer; check base_url', /not trusted/],
    ['provider a sent nothing for 300 s: a slow model may need a larger first_event_s', /silent/],
    ["longer than the model's context of 8 tokens, and could not be shortened enough; go on", /too long/],
    ["to be shortened to fit the model's context, but the model wrote no usable summary; try", /compacted/],
    ['no model provider is configured; add a [[provider]] to siskin.toml and restart', /no model yet/],
    ['the provider “home” is not in the config; choose another model', /is gone/],
    ['reached max_steps (200)', undefined],
  ]) {
    if (wanted) assert.match(meaning(message) ?? '', wanted, message);
    else assert.equal(meaning(message), undefined, message);
  }
});

test('a span is never nothing, and a time of another day bears its date', () => {
  assert.equal(span(0), '<1 ms');
  assert.equal(span(1), '1 ms');
  const at = new Date(2026, 10, 30, 21, 5).getTime();
  assert.doesNotMatch(clock(at, at), /30/);
  assert.match(clock(at, at + 86_400_000), /30/);
});
