/**
 * The log: turns and items by key, the end or the reader's place kept, more loaded at the edges.
 *
 * Rows that come or go reconcile once per frame; a delta touches the open item only.
 */

import { answerText, askedText, keyOf, project, signature } from '../core/group.js';
import { clock, exact } from '../core/format.js';
import { S } from '../core/strings.js';
import { copyButton } from './buttons.js';
import { h, setText, sync } from './dom.js';
import { icon } from './icons.js';
import { makeItem } from './item.js';
import { later } from './later.js';
import { Scroller } from './scroll.js';
import { sumButton } from './sum.js';

/** Keys of opened items that are remembered. */
const OPENED_MAX = 500;
/** Longest that older rows wait for a finger's momentum to end. */
const MOMENTUM_MS = 600;

export class LogView {
  /** @param {HTMLElement} box @param {import('../core/session.js').Session} session @param {object} deeds */
  constructor(box, session, deeds) {
    this.box = box;
    this.session = session;
    this.deeds = deeds;
    this.turns = h('div', { class: 'turns' });
    this.pendings = h('div', { class: 'pendings' });
    this.empty = h('div', { class: 'empty', hidden: true });
    this.edge = h('div', { class: 'edge', role: 'progressbar', 'aria-label': S.loading, hidden: true });
    this.column = h('div', { class: 'column' }, this.turns, this.pendings);
    this.jumpWord = h('span', {});
    this.jump = h(
      'button',
      { class: 'jump', type: 'button', hidden: true, onclick: () => this.toEnd() },
      icon('down'),
      this.jumpWord,
    );
    box.append(this.column, this.empty);
    /** @type {Map<string, {node:HTMLElement, items:Map<string, any>, body:HTMLElement, sum:HTMLElement}>} */
    this.shown = new Map();
    this.opened = new Set();
    this.dirty = false;
    this.grown = false;
    this.waitedSince = 0;
    /** a seq to be brought into view once it is there */
    this.target = 0;
    session.eye = () => this.#eye();
    this.coarse = matchMedia('(pointer: coarse)');
    this.scroller = new Scroller(box, this.column, {
      following: () => !this.session.window || this.session.window.following,
      canReturn: () => !!this.session.window && this.session.window.atTail,
      follow: (on) => this.session.follow(on),
      near: (edge) => this.#near(edge),
    });
    this.around = {
      opened: this.opened,
      session,
      hold: (node, change) => this.scroller.hold(node, change),
      again: (item) => this.#again(item),
      compact: () => deeds.compact(),
    };
  }

  /** Rows came or went. */
  changed() {
    this.dirty = true;
    this.#schedule();
  }

  /** The open chunk grew. */
  grew() {
    this.grown = true;
    this.#schedule();
  }

  /** Another tab is visible, or another part of it. @param {number} target  a seq to go to */
  cleared(target) {
    this.opened.clear();
    this.target = target;
    this.turns.replaceChildren();
    this.shown.clear();
    this.changed();
  }

  toEnd() {
    this.session.follow(true);
    this.scroller.pin();
    this.showEdges();
  }

  #schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.#draw();
    });
  }

  #draw() {
    if (this.dirty && this.#mustWait()) return this.#schedule();
    if (this.dirty) {
      this.dirty = this.grown = false;
      this.waitedSince = 0;
      this.scroller.keep(() => this.#reconcile());
      this.#goTo();
      this.showEdges();
      this.scroller.look();
    } else if (this.grown) {
      this.grown = false;
      this.#grow();
    }
  }

  /** Once the row that the reader asked for is there. */
  #goTo() {
    const log = this.session.window;
    const row = log && this.target && log.row(this.target);
    if (!row) return;
    this.target = 0;
    const node = this.turns.querySelector(`[data-key="${CSS.escape(keyOf(row))}"]`);
    this.scroller.show(node);
    node.classList.add('found');
  }

  /** The seq of the item that the reader looks at. */
  #eye() {
    for (const { turn } of this.shown.values()) {
      const item = turn.items.find((one) => one.key === this.scroller.key);
      if (item) return (item.rows[0] || item.results[0]).seq;
    }
    return 0;
  }

  /** While reading, what a finger has set in motion comes to rest first: iOS would ignore the correction. */
  #mustWait() {
    const log = this.session.window;
    if (!log || log.following || !this.coarse.matches || !this.scroller.moving) return false;
    if (!this.waitedSince) this.waitedSince = performance.now();
    return performance.now() - this.waitedSince < MOMENTUM_MS;
  }

  #grow() {
    const open = this.session.window && this.session.window.open;
    if (!open || !this.openItem || this.openItem.item.key !== keyOf(open)) return;
    // The end is kept in view by the scroller, which sees the column grow.
    this.openItem.made.update(this.openItem.item);
  }

  #reconcile() {
    const log = this.session.window;
    this.openItem = null;
    if (this.opened.size > OPENED_MAX) this.opened.clear();
    const turns = log ? project(log.rows, log.open, log.turnId) : [];
    sync(
      this.turns,
      turns,
      this.shown,
      (turn) => this.#makeTurn(turn),
      (shown, turn) => this.#updateTurn(shown, turn),
    );
    this.#showPendings();
    this.#showEmpty();
  }

  #makeTurn(turn) {
    const body = h('div', { class: 'items' });
    const sum = h('footer', { class: 'sum' });
    const node = h('section', { class: 'turn' }, body, sum);
    return { node, body, sum, items: new Map(), sumFor: '' };
  }

  #updateTurn(shown, turn) {
    shown.turn = turn;
    shown.node.classList.toggle('live', turn.live);
    sync(
      shown.body,
      turn.items,
      shown.items,
      (item) => {
        const made = makeItem(item, this.around);
        return { ...made, drawn: signature(item) };
      },
      (one, item) => {
        const drawn = signature(item);
        if (item.open) this.openItem = { item, made: one };
        if (one.drawn === drawn && !item.open) return;
        one.drawn = drawn;
        one.update(item);
      },
    );
    this.#showSum(shown, turn);
  }

  /** The turn's footer: when, tokens, why it ended, copy, again. */
  #showSum(shown, turn) {
    const sum = this.session.sums.get(turn.turnId);
    const said = turn.items.some((item) => item.kind !== 'system');
    const last = turn.items[turn.items.length - 1];
    const newest = (last.results[last.results.length - 1] || last.rows[last.rows.length - 1]).seq;
    const key = `${turn.live}/${newest}/${sum ? JSON.stringify(sum) : ''}`;
    if (shown.sumFor === key) return;
    shown.sumFor = key;
    shown.sum.hidden = turn.live || !said || turn.turnId === 'u0';
    if (shown.sum.hidden) return;
    const at = turn.items[0].rows[0] || turn.items[0].results[0];
    const parts = [h('time', { title: exact(at.createdAt) }, clock(at.createdAt, Date.now()))];
    const told = last.kind === 'error' || last.kind === 'system';
    if (sum && sum.stopReason && S.stops[sum.stopReason] && !told)
      parts.push(h('span', {}, S.stops[sum.stopReason]));
    if (sum && sum.usage && sum.usage.input + sum.usage.output > 0)
      parts.push(sumButton(sum.usage, shown, this));
    if (turn.items.some((item) => item.kind === 'text'))
      parts.push(copyButton(() => answerText(shown.turn)));
    // An error has its own button.
    if (askedText(turn) && last.kind !== 'error') {
      parts.push(
        h(
          'button',
          {
            class: 'quiet',
            type: 'button',
            'aria-label': S.askAgain,
            onclick: () => this.deeds.send(askedText(shown.turn)),
          },
          icon('again'),
          h('span', { class: 'word' }, S.askAgain),
        ),
      );
    }
    shown.sum.replaceChildren(...parts);
  }

  #again(item) {
    for (const shown of this.shown.values()) {
      if (!shown.items.has(item.key)) continue;
      if (askedText(shown.turn)) return this.deeds.send(askedText(shown.turn));
      // A turn that nobody asked for, and that is held from its beginning, was a compaction.
      const { oldest, hasOlder } = this.session.window;
      const begins = shown.turn.items[0].rows[0];
      if (begins && (begins.seq > oldest || !hasOlder)) return this.deeds.compact();
    }
    this.deeds.focus();
  }

  /** Messages that are not in the log yet. */
  #showPendings() {
    const here = this.session.pending.filter(
      (one) => one.tab === this.session.current && one.state !== 'queued',
    );
    this.pendings.replaceChildren(...here.map((one) => this.#pending(one)));
  }

  #pending(one) {
    const said = h('div', { class: 'said', dir: 'auto' }, one.text);
    const node = h('div', { class: `item user pending ${one.state}` }, said);
    if (one.state === 'unsent' || one.state === 'refused') {
      const why = one.state === 'unsent' ? S.unsent : S.refused(one.error);
      node.append(
        h(
          'div',
          { class: 'pending-foot' },
          h('span', {}, why),
          h(
            'button',
            { class: 'quiet', type: 'button', onclick: () => this.session.retry(one.clientId) },
            S.tryAgain,
          ),
          h(
            'button',
            { class: 'quiet', type: 'button', onclick: () => this.deeds.edit(one.clientId) },
            S.edit,
          ),
        ),
      );
    }
    return node;
  }

  #showEmpty() {
    const log = this.session.window;
    const empty =
      !this.session.pending.some((one) => one.tab === this.session.current) &&
      (!log || (log.known && !log.total && !log.open && !log.queue.length));
    if (!empty) {
      if (!this.empty.hidden) this.empty.replaceChildren();
      this.empty.hidden = true;
      this.emptyFor = null;
    } else if (this.empty.hidden || this.emptyFor !== this.#lack()) {
      this.emptyFor = this.#lack();
      this.#fillEmpty(this.emptyFor);
      this.empty.hidden = false;
      this.box.scrollTop = 0;
    }
    this.column.hidden = empty;
  }

  /** What the empty page is made of: the offer, if it has no model, which is what it tells then. */
  #lack() {
    const offer = this.deeds.models();
    return offer && !offer.models.length ? offer : null;
  }

  async #fillEmpty(lack) {
    try {
      const { emptyPage } = await later('empty');
      if (!this.empty.hidden && this.emptyFor === lack) this.empty.replaceChildren(emptyPage(this.deeds));
    } catch {
      // The next look at it tries again; one can write without it.
      this.emptyFor = undefined;
    }
  }

  #near(edge) {
    // What waits to be drawn comes first: more pages would push out what the reader still looks at.
    if (this.dirty) return;
    if (edge === 'older' && this.session.window && !this.session.window.hasOlder) return;
    this.session.more(edge);
    this.showEdges();
  }

  /** Progress at the top, and the way back to the end. */
  showEdges() {
    const log = this.session.window;
    const asked = this.session.asked.older;
    this.edge.hidden = !(asked && !asked.done);
    const away = !!log && !log.following;
    this.jump.hidden = !away;
    if (!away) return;
    const news = this.session.news;
    setText(this.jumpWord, S.newBelow(news));
    this.jump.setAttribute('aria-label', S.newBelowLabel(news));
  }
}
