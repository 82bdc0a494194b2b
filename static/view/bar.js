/** The bar above the log: the tab's title, its model, and what else can be done with it. */

import { S } from '../core/strings.js';
import { byId, h, setText } from './dom.js';
import { icon } from './icons.js';

/** The list is as wide as its longest line. */
const ERROR_CHARS = 60;

export class BarView {
  /** @param {import('../core/session.js').Session} session */
  constructor(session, deeds) {
    this.session = session;
    this.deeds = deeds;
    /** what the chosen model takes */
    this.efforts = [];
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
      onclick: () => this.rename(),
    });
    this.model = h('select', {
      class: 'model',
      'aria-label': S.model,
      onchange: () => this.#picked(deeds.pickModel(this.model.value)),
    });
    this.effort = h('select', {
      class: 'model only-desk',
      'aria-label': S.effort,
      hidden: true,
      onchange: () => this.#picked(deeds.pickEffort(this.effort.value)),
    });
    this.menu = h(
      'button',
      {
        class: 'icon-button',
        type: 'button',
        'aria-label': S.menu,
        title: S.menu,
        'aria-haspopup': 'menu',
        'aria-expanded': 'false',
        onclick: () => deeds.menu(this.menu, this.efforts),
      },
      icon('more'),
    );
    const heading = h('h1', {}, this.title);
    const place = h('div', { class: 'menu-place' }, this.menu);
    byId('bar').replaceChildren(this.tabsButton, heading, this.model, this.effort, place);
    // What is offered may have changed since; asked while the list is about to open.
    this.model.addEventListener('pointerdown', () => deeds.refreshModels());
    this.model.addEventListener('focus', () => deeds.refreshModels());
  }

  draw() {
    const tab = this.session.tabs.get(this.session.current);
    const aside = S.pages[this.deeds.place()];
    const title = aside || (tab && tab.title) || (this.session.epoch ? S.untitled : '');
    setText(this.title, title);
    const inTab = !aside;
    this.title.disabled = !tab || !inTab;
    this.title.title = this.title.disabled ? '' : S.renameTitle(title);
    this.model.hidden = !inTab;
    this.#drawModels(tab || this.deeds.draft());
    // On a phone the effort stands in the menu, also before there is a tab.
    this.menu.hidden = !inTab || !(tab || this.efforts.length);
    this.menu.classList.toggle('only-phone', !tab);
    this.effort.hidden = !inTab || !this.efforts.length;
    const elsewhere = [...this.session.tabs.values()].some(
      (one) =>
        one.id !== this.session.current &&
        (this.session.unread.has(one.id) || one.status === 'waiting_approval'),
    );
    this.tabsButton.querySelector('.mark').hidden = !elsewhere;
  }

  /** @param {{model?:string, effort?:string}} tab */
  #drawModels(tab) {
    const offer = this.deeds.models();
    const chosen = tab.model || '';
    const models = offer ? offer.models : [];
    this.#drawEfforts(models.find((model) => model.id === chosen) || {}, tab.effort || '');
    const key = JSON.stringify([offer, chosen]);
    if (this.drawn === key) return;
    this.drawn = key;
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
      // Until the device has told, it is not known whether there is one.
      const known = offer ? S.gone(chosen) : chosen.slice(chosen.indexOf('/') + 1);
      const word = chosen ? known : offer ? S.noModel : '…';
      nodes.unshift(h('option', { value: chosen, selected: true, disabled: !!offer }, word));
    }
    const errors = (offer && offer.errors) || [];
    for (const { provider, message } of errors) {
      const start = [...message].slice(0, ERROR_CHARS).join('');
      const told = start.length < message.length ? `${start}…` : message;
      nodes.push(h('optgroup', { label: provider }, h('option', { disabled: true }, told)));
    }
    this.model.replaceChildren(...nodes);
    this.model.title = [chosen, ...errors.map((one) => `${one.provider}: ${one.message}`)].join('\n');
  }

  /** Only where the model takes one; one that it does not take (any more) is left out by the server. */
  #drawEfforts({ efforts = [] }, chosen) {
    this.efforts = efforts;
    const key = JSON.stringify([efforts, chosen]);
    if (this.drawnEfforts === key) return;
    this.drawnEfforts = key;
    this.effort.replaceChildren(
      option('', S.effort, !efforts.includes(chosen)),
      ...efforts.map((one) => option(one, one, one === chosen)),
    );
    this.effort.title = S.effortTitle;
  }

  /** Whatever comes of it, the list shows what is so. */
  async #picked(done) {
    await done;
    this.drawn = this.drawnEfforts = null;
    this.draw();
  }

  /** The title becomes a field. */
  rename() {
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
