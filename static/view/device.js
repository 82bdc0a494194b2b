/** The device's page: how it stands, what its budgets are, and who is paired. */

import { age, count, exact, size, span } from '../core/format.js';
import { S } from '../core/strings.js';
import { L } from '../core/strings-later.js';
import { byId, h, setText } from './dom.js';
import { icon } from './icons.js';
import { sureButton } from './sure.js';

const REFRESH_MS = 5000;

export class DeviceView {
  /** @param {import('../core/api.js').Api} api */
  constructor(api, deeds) {
    this.api = api;
    this.deeds = deeds;
    this.facts = h('div', {});
    this.devices = h('div', {});
    this.says = h('p', { class: 'cause', role: 'status' });
    this.code = h('p', { class: 'pair-code', hidden: true });
    byId('device').replaceChildren(
      h(
        'div',
        { class: 'column page' },
        this.says,
        this.facts,
        h('h2', {}, L.devPaired),
        this.devices,
        h(
          'button',
          { class: 'plain', type: 'button', onclick: () => this.#newCode() },
          icon('plus'),
          L.devPairMore,
        ),
        this.code,
      ),
    );
  }

  show(on) {
    byId('device').hidden = !on;
    clearInterval(this.timer);
    this.code.hidden = true;
    if (!on) return;
    this.#refresh();
    this.#showDevices();
    this.timer = setInterval(() => this.#refresh(), REFRESH_MS);
  }

  async #refresh() {
    try {
      const status = await this.api.get('/api/status');
      setText(this.says, '');
      const { open } = this.facts.querySelector('details') || { open: false };
      this.facts.replaceChildren(...facts(status));
      this.facts.querySelector('details').open = open;
    } catch (error) {
      setText(this.says, S.failed(error.message));
    }
  }

  async #showDevices() {
    try {
      const { devices } = await this.api.get('/api/devices');
      this.devices.replaceChildren(
        table(
          devices.map((device) => this.#device(device)),
          null,
          'paired',
        ),
      );
    } catch (error) {
      setText(this.says, S.failed(error.message));
    }
  }

  #device(device) {
    const seen = h(
      'span',
      { class: 'dim', title: exact(device.lastSeenAt) },
      device.current ? L.devThis : L.devSeen(L.devAgo(age(device.lastSeenAt, Date.now()))),
    );
    const button = sureButton(L.devRevoke, L.devRevokeSure, async () => {
      await this.deeds.attempt(() => this.api.delete(`/api/devices/${device.id}`));
      this.#showDevices();
    });
    return [device.name || device.id, seen, button];
  }

  async #newCode() {
    await this.deeds.attempt(async () => {
      const { code, url } = await this.api.post('/api/pair/code', {});
      this.code.replaceChildren(L.devPairCode, ' ', h('strong', {}, code), h('br'), h('code', {}, url));
      this.code.hidden = false;
      this.code.scrollIntoView({ block: 'nearest' });
    });
  }
}

/** @param {any[][]} rows */
function table(rows, head, kind = '') {
  const line = (tag) => (cells) => h('tr', {}, ...cells.map((cell) => h(tag, {}, cell)));
  return h(
    'div',
    { class: 'wide' },
    h(
      'table',
      { class: `facts ${kind}` },
      head && h('thead', {}, line('th')(head)),
      h('tbody', {}, ...rows.map(line('td'))),
    ),
  );
}

function facts(status) {
  const { memory = {}, store = {}, budgets = [], sandbox = [] } = status;
  const general = [
    [L.devVersion, `${status.version}${status.demo ? ` · ${S.demo}` : ''}`],
    [L.devUptime, span(status.uptimeMs)],
    [L.devMemory, `${size(memory.rss)} · ${L.devPeak(size(memory.peakRss))}`],
    [L.devHeap, `${size(memory.heap)} · ${L.devPeak(size(memory.peakHeap))}`],
    [L.devConnections, String(status.connections)],
    [L.devTurns, String(status.turns)],
    [L.devPanics, String(status.panics)],
    [L.devClock, status.clockOk ? L.devClockOk : L.devClockBad],
  ];
  const kept = [
    [L.devStoreSize, L.devOf(size(store.bytes), size(store.limitBytes))],
    [L.devWal, size(store.walBytes)],
    [L.devJournal, `${store.journal}: ${store.promise}`],
    [
      L.devSyncs,
      L.devSyncsOf(
        count(store.turnSyncs),
        count(store.checkpointSyncs),
        count(store.otherSyncs),
        count(store.sealedTurns),
      ),
    ],
  ];
  const nodes = [table(general), h('h2', {}, L.devStore)];
  if (store.error) nodes.push(h('p', { class: 'cause' }, store.error));
  nodes.push(table(kept), h('h2', {}, L.devBudgets), ...budgetTables(budgets));
  if (sandbox.length) {
    nodes.push(
      h('h2', {}, L.devSandbox),
      table(sandbox.map((one) => [one.layer, one.ok ? icon('check') : icon('cross'), one.text])),
    );
  }
  return nodes;
}

/** @param {any[]} budgets  those that are metered first; the fixed limits are there for who asks */
function budgetTables(budgets) {
  const metered = budgets.filter((one) => one.used != null);
  const fixed = budgets.filter((one) => one.used == null);
  const rest = fixed.map((one) => [name(one), amount(one.limit, one.unit)]);
  return [
    table(metered.map(meteredRow), L.devBudgetHead, 'figures'),
    h('details', {}, h('summary', {}, L.devFixed), table(rest, null, 'figures')),
  ];
}

/** The unit stands behind the number already. */
function name(budget) {
  return budget.name.replace(/_(bytes|ms)$/, '').replaceAll('_', ' ');
}

function amount(value, unit) {
  if (value === undefined) return '';
  const text =
    unit === 'bytes' ? size(value) : unit === 'ms' ? span(value).replace('.0', '') : count(value);
  return text.replace(' ', '\u00a0');
}

function meteredRow(budget) {
  const { limit, used, peak, unit } = budget;
  const cells = [name(budget), amount(used, unit), amount(peak, unit), amount(limit, unit)];
  // A budget that was reached is an ordinary event, but one to see.
  if (limit > 0 && peak >= limit) cells[2] = h('b', { class: 'reached' }, cells[2]);
  return cells;
}
