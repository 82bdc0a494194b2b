/** The bar above the log: the tab's title, its model, and what else can be done with it. */

import { S } from '../core/strings.js';
import { byId, h, setText } from './dom.js';
import { icon } from './icons.js';

export class BarView {
  /** @param {import('../core/session.js').Session} session */
  constructor(session, deeds) {
    this.session = session;
    this.deeds = deeds;
    this.tabsButton = h(
      'button',
      {
        id: 'tabs-button',
        class: 'icon-button only-phone',
        type: 'button',
        'aria-label': S.openTabs,
        'aria-expanded': 'false',
        'aria-controls': 'side',
        onclick: () => deeds.sheet(true),
      },
      icon('menu'),
      h('i', { class: 'dot mark', hidden: true }),
    );
    this.title = h('button', {
      class: 'title',
      type: 'button',
      dir: 'auto',
      onclick: () => this.#rename(),
    });
    this.model = h('select', { class: 'model', 'aria-label': S.model, onchange: () => this.#pick() });
    this.effort = h('select', {
      class: 'model',
      'aria-label': S.effort,
      hidden: true,
      onchange: () => this.#pickEffort(),
    });
    this.archive = h(
      'button',
      {
        class: 'icon-button',
        type: 'button',
        'aria-label': S.archive,
        title: S.archive,
        onclick: () => deeds.archive(),
      },
      icon('archive'),
    );
    const heading = h('h1', {}, this.title);
    byId('bar').replaceChildren(this.tabsButton, heading, this.model, this.effort, this.archive);
    // What is offered may have changed since; asked while the list is about to open.
    this.model.addEventListener('pointerdown', () => deeds.refreshModels());
    this.model.addEventListener('focus', () => deeds.refreshModels());
  }

  draw() {
    const tab = this.session.tabs.get(this.session.current);
    const aside = S.pages[this.deeds.place()];
    const title = aside || (tab && tab.title) || S.untitled;
    setText(this.title, title);
    const inTab = !aside;
    this.title.disabled = !tab || !inTab;
    this.title.title = this.title.disabled ? '' : S.renameTitle(title);
    this.archive.hidden = !tab || !inTab;
    this.model.hidden = !inTab;
    this.#drawModels(tab);
    const elsewhere = [...this.session.tabs.values()].some(
      (one) =>
        one.id !== this.session.current &&
        (this.session.unread.has(one.id) || one.status === 'waiting_approval'),
    );
    this.tabsButton.querySelector('.mark').hidden = !elsewhere;
  }

  #drawModels(tab) {
    const offer = this.deeds.models();
    const chosen = (tab ? tab.model : this.deeds.draftModel()) || '';
    const key = JSON.stringify([offer, chosen]);
    if (this.drawn === key) return;
    this.drawn = key;
    const models = offer ? offer.models : [];
    const groups = new Map();
    for (const model of models) {
      if (!groups.has(model.provider)) groups.set(model.provider, []);
      // The closed list shows the name alone, which another provider may have as well.
      const twin = models.some((one) => one.name === model.name && one.id !== model.id);
      const name = (!twin && model.name) || model.id;
      groups.get(model.provider).push(option(model.id, name, model.id === chosen));
    }
    const nodes = [...groups].map(([provider, options]) => h('optgroup', { label: provider }, ...options));
    if (!models.some((model) => model.id === chosen)) {
      const word = chosen ? (offer ? S.gone(chosen) : chosen.slice(chosen.indexOf('/') + 1)) : S.noModel;
      nodes.unshift(h('option', { value: chosen, selected: true, disabled: !!offer }, word));
    }
    for (const error of (offer && offer.errors) || []) {
      nodes.push(h('option', { disabled: true }, `${error.provider}: ${error.message}`));
    }
    this.model.replaceChildren(...nodes);
    this.model.title = chosen;
    this.#drawEfforts(
      models.find((model) => model.id === chosen),
      tab,
    );
  }

  #drawEfforts(model, tab) {
    const efforts = (tab && model && model.efforts) || [];
    this.effort.hidden = !efforts.length;
    const chosen = (tab && tab.effort) || '';
    this.effort.replaceChildren(
      h('option', { value: '', selected: !chosen }, S.effort),
      ...efforts.map((one) => option(one, one, one === chosen)),
    );
  }

  #pick() {
    this.deeds.pickModel(this.model.value);
    this.drawn = null;
  }

  #pickEffort() {
    this.deeds.change({ effort: this.effort.value || null });
    this.drawn = null;
  }

  #rename() {
    const tab = this.session.tabs.get(this.session.current);
    if (!tab) return;
    const field = h('input', {
      class: 'title',
      value: tab.title,
      'aria-label': S.title,
      maxLength: 120,
      dir: 'auto',
    });
    let done = false;
    const end = (keep) => {
      if (done) return;
      done = true;
      const title = field.value.trim();
      field.replaceWith(this.title);
      if (keep && title && title !== tab.title) this.deeds.change({ title });
      this.title.focus();
    };
    field.addEventListener('blur', () => end(true));
    field.addEventListener('keydown', (event) => {
      if (event.isComposing) return;
      if (event.key === 'Enter') end(true);
      if (event.key === 'Escape') end(false);
    });
    this.title.replaceWith(field);
    field.select();
    field.focus();
  }
}

function option(value, text, selected) {
  return h('option', { value, selected }, text);
}
