/** The foot: queued messages, the field to write in, and one line that says what is going on. */

import { count, hitRate, span } from '../core/format.js';
import { S } from '../core/strings.js';
import { byId, h, setText, sync } from './dom.js';
import { icon } from './icons.js';
import { sumText } from './sum.js';

/** A draft is written down this long after the last key. */
const DRAFT_MS = 400;

export class ComposerView {
  /** @param {import('../core/session.js').Session} session */
  constructor(session, deeds, jump) {
    this.session = session;
    this.deeds = deeds;
    this.field = h('textarea', {
      id: 'ask',
      rows: 1,
      dir: 'auto',
      placeholder: S.ask,
      'aria-label': S.askLabel,
      enterKeyHint: 'send',
      autocomplete: 'off',
    });
    this.sendButton = h(
      'button',
      { class: 'send', type: 'submit', 'aria-label': S.send, title: S.send },
      icon('send'),
    );
    this.stopButton = h(
      'button',
      {
        class: 'halt',
        type: 'button',
        'aria-label': S.stop,
        title: S.stop,
        hidden: true,
        onclick: () => deeds.stop(),
      },
      icon('stop'),
    );
    this.form = h(
      'form',
      { class: 'ask', onsubmit: (event) => this.#submit(event) },
      this.field,
      this.stopButton,
      this.sendButton,
    );
    this.queue = h('div', { class: 'queue' });
    this.queued = new Map();
    this.doing = h('span', { class: 'doing' });
    this.tokens = h('span', { class: 'tokens' });
    byId('foot').replaceChildren(
      jump,
      this.queue,
      this.form,
      h('div', { class: 'status' }, this.doing, this.tokens),
    );
    this.coarse = matchMedia('(pointer: coarse)');
    this.#listen();
    setInterval(() => this.drawStatus(), 1000);
  }

  #listen() {
    this.field.addEventListener('input', () => {
      this.#grow();
      this.#buttons();
      clearTimeout(this.draftTimer);
      this.draftTimer = setTimeout(() => this.saveDraft(), DRAFT_MS);
    });
    this.field.addEventListener('keydown', (event) => {
      // 229: a key that an input method is still busy with, where isComposing is not told.
      if (event.key !== 'Enter' || event.isComposing || event.keyCode === 229) return;
      const sends = event.ctrlKey || event.metaKey || (!event.shiftKey && !this.coarse.matches);
      if (sends) this.#submit(event);
    });
    // Pressing a button must not close a phone's keyboard.
    this.form.addEventListener('pointerdown', (event) => {
      if (event.target !== this.field) event.preventDefault();
    });
    window.addEventListener('pagehide', () => this.saveDraft());
  }

  #submit(event) {
    event.preventDefault();
    const text = this.field.value;
    if (!text.trim()) return;
    this.set('');
    this.saveDraft();
    this.deeds.send(text);
  }

  /** @param {string} text */
  set(text) {
    this.field.value = text;
    this.#grow();
    this.#buttons();
  }

  get text() {
    return this.field.value;
  }

  focus() {
    // A phone's keyboard would cover what one came to read.
    if (!this.coarse.matches) this.field.focus({ preventScroll: true });
  }

  get #draftKey() {
    return `draft.${this.draftTab || 'new'}`;
  }

  saveDraft() {
    clearTimeout(this.draftTimer);
    this.session.storage.set(this.#draftKey, this.field.value);
  }

  /** Another tab is visible: its own draft. */
  moved() {
    this.saveDraft();
    this.draftTab = this.session.current;
    this.set(this.session.storage.get(this.#draftKey) || '');
    this.focus();
  }

  #grow() {
    if (CSS.supports('field-sizing', 'content')) return;
    this.field.style.height = 'auto';
    this.field.style.height = `${this.field.scrollHeight}px`;
  }

  get #busy() {
    const tab = this.session.tabs.get(this.session.current);
    return !!tab && tab.status !== 'idle' && tab.status !== 'error';
  }

  #buttons() {
    this.stopButton.hidden = !this.#busy;
    const empty = !this.field.value.trim();
    this.sendButton.disabled = empty;
    this.sendButton.hidden = this.#busy && empty;
    const label = this.#busy ? S.queueIt : S.send;
    this.sendButton.setAttribute('aria-label', label);
    this.sendButton.title = label;
  }

  draw() {
    this.#buttons();
    this.#drawQueue();
    this.drawStatus();
  }

  #drawQueue() {
    const log = this.session.window;
    const here = this.session.pending.filter(
      (one) => one.tab === this.session.current && one.state === 'queued',
    );
    const all = (log ? log.queue : []).concat(here);
    const wanted = all.map((one) => ({ key: one.clientId, one }));
    if (all.length && !this.#busy) wanted.push({ key: '-now' });
    sync(
      this.queue,
      wanted,
      this.queued,
      (want) => this.#makeQueued(want),
      (shown, { one }) => {
        shown.one = one;
        if (one) setText(shown.text, one.text);
      },
    );
  }

  #makeQueued(want) {
    if (!want.one) {
      return {
        node: h(
          'div',
          { class: 'queued-now' },
          h('span', {}, S.leftover),
          h('button', { class: 'plain', type: 'button', onclick: () => this.deeds.sendQueue() }, S.sendNow),
        ),
      };
    }
    const text = h('span', { class: 'text', dir: 'auto' });
    const shown = { text, one: want.one };
    shown.node = h(
      'div',
      { class: 'queued' },
      h('span', { class: 'dim' }, S.queued),
      text,
      h(
        'button',
        { class: 'quiet', type: 'button', onclick: () => this.deeds.takeBack(shown.one) },
        S.takeBack,
      ),
    );
    return shown;
  }

  /** What is going on, and for how long. */
  drawStatus() {
    const tab = this.session.tabs.get(this.session.current);
    // What it does now cannot be known.
    const away = this.deeds.away();
    const busy = this.#busy && !away;
    const demo = !this.#busy && !!this.deeds.status() && this.deeds.status().demo;
    setText(this.doing, busy ? this.#doing(tab) : demo ? S.demoNote : away ? S.away : '');
    // A provider's words may be longer than the line, and even than three.
    const retrying = busy && tab.status === 'retrying';
    this.doing.classList.toggle('long', retrying);
    this.doing.title = retrying ? this.doing.textContent : '';
    this.doing.classList.toggle('demo', demo);
    this.doing.classList.toggle('busy', busy);
    setText(this.tokens, tab ? this.#tokens(tab) : this.coarse.matches ? '' : S.hintDesk);
    const known = tab && tab.usage && hitRate(tab.usage) !== null;
    this.tokens.title = known ? `${S.tabSumTitle}: ${sumText(tab.usage)}` : '';
  }

  #doing(tab) {
    const since = this.session.runningSince.get(tab.id);
    const now = this.session.clock.now();
    const took =
      since && now - since > 999
        ? ` · ${span(Math.floor((now - since) / 1000) * 1000).replace('.0', '')}`
        : '';
    if (tab.status === 'waiting') return S.waitingSlot + took;
    if (tab.status === 'waiting_approval') return S.waitingOwner;
    if (tab.status === 'retrying') {
      const detail = this.session.details.get(tab.id) || { at: now, delayMs: 0, attempt: 1 };
      const left = Math.max(0, Math.ceil((detail.at + (detail.delayMs || 0) - now) / 1000));
      return `${S.retrying(left, detail.attempt || 1)}${detail.message ? `: ${detail.message}` : ''}`;
    }
    return this.#step() + took;
  }

  #step() {
    const log = this.session.window;
    const open = log && log.open;
    if (open && open.type === 'text') return S.writing;
    if (open && open.type === 'thinking') return S.thinkingNow;
    if (open) return S.runningTool(open.data.name);
    const last = log && log.rows[log.rows.length - 1];
    const { message } = this.session.details.get(this.session.current) || {};
    if (message) return S.works[message] || message;
    // Who came later was not told. A turn begins with what was asked; one without is a compaction.
    if (log && log.turnId && log.atTail && (!last || last.turnId !== log.turnId)) return S.compacting;
    if (last && last.type === 'tool_call' && last.turnId === log.turnId)
      return S.runningTool(last.data.name);
    return S.working;
  }

  /** What the tab has used so far; a turn's own sum stands in its footer. */
  #tokens(tab) {
    const { usage } = tab;
    const rate = usage ? hitRate(usage) : null;
    if (rate === null) return this.coarse.matches ? '' : S.hintDesk;
    return S.tabSum(
      count(usage.input + usage.cacheRead + usage.cacheWrite + usage.output),
      Math.round(rate * 100),
    );
  }
}
