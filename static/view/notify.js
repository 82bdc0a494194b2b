/**
 * What is said outside the log: toasts, the banner of a lost connection, the title, the favicon, and to
 * screen readers.
 */

import { S } from '../core/strings.js';
import { byId, h, setText } from './dom.js';

/** A short loss is nobody's business. */
const BANNER_AFTER_MS = 2000;
const TOAST_MS = 6000;

export class Notifier {
  /** @param {import('../core/session.js').Session} session */
  constructor(session) {
    this.session = session;
    this.text = h('span', {});
    this.now = h(
      'button',
      { class: 'quiet', type: 'button', onclick: () => session.connection.nudge() },
      S.tryNow,
    );
    byId('banner').replaceChildren(this.text, this.now);
  }

  /** @param {string} text @param {{word:string, act:()=>void}} [action] @returns {HTMLElement} */
  toast(text, action) {
    const node = h('div', { class: 'toast', role: 'status' }, h('span', {}, text));
    if (action) {
      node.append(
        h(
          'button',
          {
            class: 'quiet',
            type: 'button',
            onclick: () => {
              node.remove();
              action.act();
            },
          },
          action.word,
        ),
      );
    }
    const old = byId('toasts').children;
    if (old.length > 2) old[0].remove();
    byId('toasts').append(node);
    setTimeout(() => node.remove(), TOAST_MS);
    return node;
  }

  /** @param {string} text  to screen readers only, politely */
  say(text) {
    setText(byId('say'), text);
  }

  connection(state) {
    clearTimeout(this.timer);
    clearInterval(this.ticker);
    if (state === 'open' || state === 'off' || state === 'denied') {
      this.lostAt = null;
      byId('banner').hidden = true;
      return;
    }
    this.lostAt = this.lostAt || Date.now();
    const wait = Math.max(0, this.lostAt + BANNER_AFTER_MS - Date.now());
    this.timer = setTimeout(() => this.#banner(), wait);
  }

  #banner() {
    const draw = () => {
      const { state, retryAt } = this.session.connection;
      const left = state === 'waiting' ? Math.ceil((retryAt - this.session.clock.now()) / 1000) : 0;
      setText(this.text, `${S.offline} ${S.offlineNext(left)}`);
    };
    draw();
    byId('banner').hidden = false;
    this.ticker = setInterval(draw, 1000);
  }

  /** The log cannot be kept in step: the one thing that only a reload mends. */
  broken() {
    const node = h(
      'div',
      { class: 'toast', role: 'alert' },
      h('span', {}, S.broken),
      h('button', { class: 'quiet', type: 'button', onclick: () => location.reload() }, S.reload),
    );
    byId('toasts').replaceChildren(node);
  }

  /** Title and favicon show that something waits, also from behind other windows. */
  marks() {
    const tabs = [...this.session.tabs.values()];
    const waits =
      this.session.approvals.length > 0 || tabs.some((tab) => tab.status === 'waiting_approval');
    const current = this.session.tabs.get(this.session.current);
    const title = (current && current.title) || '';
    const mark = waits ? '(!) ' : this.session.unread.size ? `(${this.session.unread.size}) ` : '';
    document.title = `${mark}${title ? `${title} · ` : ''}${S.app}`;
    const href = waits ? 'icon-waits.svg' : 'icon.svg';
    if (byId('favicon').getAttribute('href') !== href) byId('favicon').setAttribute('href', href);
  }
}
