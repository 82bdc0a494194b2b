/** The page of archived tabs: to be brought back, or erased for good. */

import { age, exact } from '../core/format.js';
import { S } from '../core/strings.js';
import { L } from '../core/strings-later.js';
import { byId, h, setText } from './dom.js';
import { sureButton } from './sure.js';

export class ArchivedView {
  /** @param {import('../core/api.js').Api} api @param {object} deeds */
  constructor(api, deeds) {
    this.api = api;
    this.deeds = deeds;
    this.list = h('ul', { class: 'kept' });
    this.says = h('p', { class: 'dim', role: 'status' });
    byId('archived').replaceChildren(h('div', { class: 'column page' }, this.says, this.list));
  }

  show(on) {
    byId('archived').hidden = !on;
    if (on) this.#refresh();
  }

  async #refresh() {
    try {
      const all = await this.api.get('/api/tabs?archived=true');
      const tabs = all.tabs.filter((tab) => tab.archived);
      tabs.sort((a, b) => b.updatedAt - a.updatedAt);
      this.list.replaceChildren(...tabs.map((tab) => this.#tab(tab)));
      setText(this.says, tabs.length ? L.archivedNote : L.archivedNone);
    } catch (error) {
      setText(this.says, S.failed(error.message));
    }
  }

  #tab(tab) {
    const back = h(
      'button',
      { class: 'quiet', type: 'button', onclick: () => this.deeds.bringBack(tab.id) },
      L.bringBack,
    );
    const erase = sureButton(L.erase, L.eraseSure, async () => {
      await this.deeds.attempt(() => this.api.delete(`/api/tabs/${tab.id}?purge=true`));
      this.#refresh();
    });
    return h(
      'li',
      {},
      h('span', { class: 'title', dir: 'auto' }, tab.title || S.untitled),
      h('time', { class: 'dim', title: exact(tab.updatedAt) }, age(tab.updatedAt, Date.now())),
      back,
      erase,
    );
  }
}
