/** How well the provider's cache served: the requests of one turn, or the last ones of a tab. */

import { clock, count, exact } from '../core/format.js';
import { findTurn, requestsOf, together } from '../core/health.js';
import { L } from '../core/strings-later.js';
import { h } from './dom.js';
import { openSheet } from './sheet.js';

/** Requests that the sheet lists. */
const LISTED = 50;

const turnsOf = (api, tab) => (query) => api.get(`/api/tabs/${tab}/turns?${query}`);

/** @param {import('../core/api.js').Api} api @param {string} tab @returns {Promise<HTMLElement>} */
export async function turnRequests(api, tab, turnId, seq) {
  const turn = await findTurn(turnsOf(api, tab), turnId, seq);
  const requests = turn ? requestsOf([turn]) : [];
  const several = new Set(requests.map((one) => one.model)).size > 1;
  const label = (one) => [named(String(one.no), one), several && h('small', {}, ` ${one.model}`)];
  return h('div', { class: 'requests' }, requests.length ? table(requests, label) : L.cacheNone);
}

/** Opens the sheet of a tab's last requests. */
export async function showCache(api, tab) {
  const { turns } = await turnsOf(api, tab.id)(`limit=${LISTED}`);
  const requests = requestsOf(turns).slice(-LISTED).reverse();
  const { sent, rate } = together(requests);
  const now = Date.now();
  let turn = null;
  const label = (one) => {
    const first = one.turn !== turn;
    turn = one.turn;
    const at = h('time', { title: exact(turn.startedAt) }, clock(turn.startedAt, now));
    return [named(first ? at : '', one)];
  };
  const body = requests.length
    ? [
        h('p', { class: 'dim' }, L.cacheSum(requests.length, count(sent), percent(rate))),
        h('div', { class: 'requests' }, table(requests, label)),
        h('p', { class: 'dim' }, L.cacheNote),
      ]
    : [h('p', { class: 'dim' }, L.cacheNone)];
  openSheet(L.cache, body);
}

function named(name, one) {
  return h('span', {}, name, one.compaction && h('small', {}, ` ${L.compaction}`));
}

const percent = (rate) => (rate === null ? '–' : `${Math.floor(rate * 100)} %`);

function table(requests, label) {
  const head = h('tr', {}, h('td', {}), ...L.cacheHead.map((word) => h('th', { scope: 'col' }, word)));
  return h(
    'table',
    {},
    h('thead', {}, head),
    h('tbody', {}, ...requests.flatMap((one) => lines(one, label(one)))),
  );
}

function lines(one, label) {
  const share = h('td', { class: 'share' }, h('div', {}, bar(one), h('b', {}, percent(one.rate))));
  const cells = [h('th', { scope: 'row' }, ...label), share];
  for (const tokens of [one.fresh, one.read, one.written, one.out]) cells.push(h('td', {}, count(tokens)));
  const line = h('tr', {}, ...cells);
  if (!one.cause) return [line];
  return [line, h('tr', { class: 'why' }, h('td', { colSpan: 6 }, one.cause))];
}

/** What was read, written and sent fresh, as parts of one bar. */
function bar({ read, written, fresh }) {
  const parts = [
    ['read', read],
    ['written', written],
    ['fresh', fresh],
  ].map(([kind, tokens]) => {
    const part = h('i', { class: kind });
    part.style.flexGrow = tokens;
    return part;
  });
  return h('span', { class: 'bars', 'aria-hidden': 'true' }, ...parts);
}
