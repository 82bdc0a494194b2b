// Clients that do anything in any order, against turns that do anything: whatever comes, the window of each
// is contiguous, within its limits and equal to the log (the peer checks that at every frame), ends at the
// tail when it follows, and does not move under one who reads. `SISKIN_SEED` repeats a run.

import assert from 'node:assert/strict';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Siskin } from '../fixture.mjs';
import { Peer } from '../peer.mjs';
import { call, Provider, say, text, thinking } from '../provider.mjs';

const SEEDS = process.env.SISKIN_SEED ? [Number(process.env.SISKIN_SEED)] : [1, 2, 3, 4];
const STEPS = 120;
const RESTART_AT = [40, 80];

/** A repeatable source of chance. */
function chance(seed) {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

/** Any answer: many small blocks, few large ones, calls; quickly or slowly; now and then cut off. */
function anyAnswer(pick) {
  const part = () => {
    switch (pick(6)) {
      case 0:
        return thinking(...Array.from({ length: 1 + pick(4) }, () => 'so… '));
      case 1:
        return text('é'.repeat(pick(14_000) + 1));
      default:
        return text(...Array.from({ length: 1 + pick(6) }, (_, n) => `word ${n} `));
    }
  };
  const count = 1 + pick(60);
  const calls = pick(3) ? 0 : 1 + pick(3);
  const parts = () => [
    ...Array.from({ length: count }, part),
    ...Array.from({ length: calls }, () => call('system_info')),
  ];
  const cutAt = pick(8) ? undefined : 500 + pick(4000);
  return say(parts, { split: 200 + pick(3000), pauseMs: pick(4) * 3, cutAt });
}

/** One client, which drops its connection and comes back with what it held. */
class Wanderer {
  constructor(siskin, pick, name) {
    Object.assign(this, { siskin, pick, name, reads: false });
    this.limits = { chunkLimit: 20 + pick(180), byteLimit: 262_144 + pick(800_000) };
  }

  async connect(from) {
    const { siskin } = this;
    this.peer = new Peer(siskin.url, { token: siskin.token, name: this.name, ...this.limits, from });
    siskin.peers.push(this.peer);
    await this.peer.hello();
    if (!from?.tab) return;
    await this.peer.until(() => this.peer.frames.some((frame) => frame.type === 'window'), 'the window');
  }

  /** Drops the connection, perhaps amid a frame; comes back as what it was, perhaps late. */
  async reconnect() {
    const from = this.peer;
    from.drop();
    await sleep(this.pick(120));
    await this.connect(from);
  }

  async step(tabs) {
    const { peer, pick } = this;
    const tab = tabs[pick(tabs.length)].id;
    if (!peer.tab) return peer.open(tab);
    switch (pick(14)) {
      case 0:
        return peer.open(tab);
      case 1:
        return peer.open(tab, 1 + pick(400));
      case 2:
      case 3:
      case 4:
        return peer.older(1 + pick(80));
      case 5:
      case 6:
        return peer.newer(1 + pick(80));
      case 7:
        return peer.follow(true);
      case 8:
        return peer.follow(false);
      case 9:
        return this.reconnect();
      case 10:
        return this.rest();
      case 11:
        // Several at once, as a quick reader sends them.
        return Promise.all([peer.older(20), peer.newer(20), peer.older(5)]);
      default:
        return sleep(pick(40));
    }
  }

  /** One who reads does nothing for a while: what is held stays, and may only grow at its end. */
  async rest() {
    const { peer } = this;
    await peer.follow(false);
    const [oldest, newest] = [peer.rows[0]?.seq, peer.newest];
    const { evicts } = peer;
    const from = peer.frames.length;
    await sleep(30 + this.pick(60));
    // New limits take hold at once, also under a reader.
    const limited = peer.frames.slice(from).some(({ type }) => type === 'limits');
    if (peer.end || !newest || limited) return;
    assert.ok(peer.rows[0].seq <= oldest, 'the oldest row stays');
    assert.ok(peer.newest >= newest, 'the newest row stays');
    const dropped = peer.evicts - evicts;
    assert.ok(dropped <= 1, `${dropped} evictions under a reader`);
  }
}

/** What is held is the log's, and who follows is at its end. */
async function settle(siskin, wanderers, tabs) {
  for (const { id } of tabs) await siskin.idle(id, 60_000);
  for (const { peer, name } of wanderers) {
    if (!peer.tab) continue;
    await peer.ping();
    const log = await siskin.log(peer.tab);
    if (peer.following) await peer.until(() => (peer.newest ?? 0) === log.length, `${name} at the tail`);
    assert.equal(peer.open_, null, `${name}: nothing is open`);
    assert.equal(peer.turn, null, `${name}: nothing runs`);
    const [first] = peer.rows;
    assert.deepEqual(peer.rows, first ? log.slice(first.seq - 1, peer.newest) : [], name);
  }
}

for (const seed of SEEDS) {
  test(`seed ${seed}: any client, any turn, restarts: each window is the log's`, async (t) => {
    const pick = chance(seed * 7919);
    const provider = await Provider.start();
    t.after(() => provider.stop());
    const siskin = await Siskin.start(t, { provider, wires: [pick(2) ? 'a' : 'o'] });
    const tabs = [await siskin.newTab(), await siskin.newTab()];
    const wanderers = ['ann', 'bob', 'eve'].map((name) => new Wanderer(siskin, chance(pick(1e9)), name));
    for (const one of wanderers) await one.connect();
    let calls = 0;
    for (let n = 0; n < STEPS; n += 1) {
      for (const { id } of tabs) {
        if (pick(6)) continue;
        provider.answers.push(anyAnswer(chance(pick(1e9))));
        await siskin.api('POST', `/api/tabs/${id}/messages`, { clientId: `s${seed}n${n}${id}`, text: 'go' });
      }
      if (!pick(30)) await siskin.api('POST', `/api/tabs/${tabs[0].id}/stop`);
      if (!pick(15)) await siskin.api('PUT', '/api/settings', { chunkLimit: 20 + pick(180) });
      if (RESTART_AT.includes(n)) {
        // Half of the time in good order, else not.
        const from = wanderers.map(({ peer }) => peer);
        await (pick(2) ? siskin.stop() : siskin.kill());
        await siskin.restart();
        await Promise.all(wanderers.map((one, at) => one.connect(from[at])));
      }
      await Promise.all(wanderers.map((one) => one.step(tabs)));
      calls += wanderers.length;
      const faults = siskin.peers.map((peer) => peer.fault?.message).filter(Boolean);
      assert.deepEqual(faults, [], `after step ${n}`);
      if (n % 30 === 29) await settle(siskin, wanderers, tabs);
    }
    await settle(siskin, wanderers, tabs);
    // And each can still be brought to the end.
    for (const { peer } of wanderers) if (peer.tab) await peer.follow(true);
    await settle(siskin, wanderers, tabs);
    const totals = await Promise.all(tabs.map(({ id }) => siskin.tab(id).then(({ total }) => total)));
    t.diagnostic(`${calls} deeds, ${siskin.peers.length} connections, ${totals} rows`);
    assert.ok(totals[0] + totals[1] > 300, `${totals} rows put it to the test`);
  });
}
