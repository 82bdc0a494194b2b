/** The list of tabs: a narrow column, or a sheet on a phone. */

import { age, exact } from '../core/format.js';
import { S } from '../core/strings.js';
import { byId, h, setText, sync } from './dom.js';
import { icon } from './icons.js';
import { themeButton } from './theme.js';

export class SideView {
  /** @param {import('../core/session.js').Session} session */
  constructor(session, deeds) {
    this.session = session;
    this.deeds = deeds;
    this.list = h('nav', { class: 'tabs', 'aria-label': S.tabs });
    this.demo = h('span', { class: 'chip', title: S.demoTitle, hidden: true }, S.demo);
    this.none = h('p', { class: 'dim none' }, S.noTabs);
    this.pages = [
      h('a', { class: 'quiet', href: '#/device' }, icon('device'), S.device),
      h('a', { class: 'quiet', href: '#/archived' }, icon('archive'), S.archivedTabs),
    ];
    /** @type {Map<string, any>} */
    this.shown = new Map();
    byId('side').replaceChildren(
      h(
        'div',
        { class: 'side-head' },
        h('img', { src: 'icon.svg', alt: '', width: 24, height: 24 }),
        h('b', {}, S.app),
        this.demo,
        h(
          'button',
          {
            class: 'icon-button only-phone',
            type: 'button',
            'aria-label': S.closeTabs,
            onclick: () => this.sheet(false),
          },
          icon('close'),
        ),
      ),
      h('a', { class: 'new', href: '#/new' }, icon('plus'), S.newTab),
      this.none,
      this.list,
      h(
        'div',
        { class: 'side-foot' },
        ...this.pages,
        themeButton(),
      ),
    );
    byId('veil').addEventListener('click', () => this.sheet(false));
    byId('side').addEventListener('click', (event) => {
      if (event.target instanceof Element && event.target.closest('a')) this.sheet(false);
    });
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && document.body.classList.contains('sheet')) this.sheet(false);
    });
    setInterval(() => this.draw(), 60_000);
  }

  /** @param {boolean} open  the phone's sheet */
  sheet(open) {
    const was = document.body.classList.contains('sheet');
    document.body.classList.toggle('sheet', open);
    document.querySelector('main').inert = open;
    byId('tabs-button').setAttribute('aria-expanded', String(open));
    if (open)
      (this.list.querySelector('[aria-current]') || this.list.querySelector('a') || byId('side')).focus();
    else if (was) byId('tabs-button').focus();
  }

  draw() {
    const tabs = [...this.session.tabs.values()].sort((a, b) => b.updatedAt - a.updatedAt);
    sync(
      this.list,
      tabs.map((tab) => ({ key: tab.id, tab })),
      this.shown,
      () => this.#make(),
      (one, { tab }) => this.#update(one, tab),
    );
    // Until the device has told, it is not known.
    this.none.hidden = tabs.length > 0 || !this.session.epoch;
    for (const page of this.pages) mark(page, page.hash === `#/${this.deeds.place()}`);
  }

  #make() {
    const title = h('span', { class: 'title', dir: 'auto' });
    const one = { dot: h('i', { class: 'dot' }), title, age: h('time', {}) };
    return { ...one, node: h('a', { class: 'tab' }, one.dot, one.title, one.age) };
  }

  #update(one, tab) {
    one.node.href = `#/${tab.id}`;
    const waits = this.session.approvals.some((approval) => approval.tab === tab.id);
    const unread = this.session.unread.has(tab.id);
    const status = waits ? 'waiting_approval' : tab.status;
    setText(one.title, tab.title || S.untitled);
    setText(one.age, age(tab.updatedAt, Date.now()));
    one.age.title = exact(tab.updatedAt);
    one.dot.className = `dot ${status}${unread ? ' unread' : ''}`;
    one.node.classList.toggle('unread', unread);
    const words = [
      tab.title || S.untitled,
      status === 'idle' ? '' : S.status[status],
      unread ? S.unread : '',
    ];
    one.node.setAttribute('aria-label', words.filter(Boolean).join(', '));
    mark(one.node, tab.id === this.deeds.place());
  }
}

/** @param {HTMLElement} link @param {boolean} current */
function mark(link, current) {
  if (current) link.setAttribute('aria-current', 'page');
  else link.removeAttribute('aria-current');
}
