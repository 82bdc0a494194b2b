/** The screen of a browser that is not paired: one field, and where to get what goes into it. */

import { L } from '../core/strings-later.js';
import { byId, h, setText } from './dom.js';

/** How this browser is called in the list of devices. */
function ownName() {
  const agent = navigator.userAgent;
  const browser = ['Edg', 'Firefox', 'Chrome', 'Safari'].find((name) => agent.includes(name)) || 'Browser';
  const system = ['Android', 'iPhone', 'iPad', 'Windows', 'Mac OS', 'CrOS', 'Linux'].find((name) =>
    agent.includes(name),
  );
  return `${browser === 'Edg' ? 'Edge' : browser}${system ? ` on ${system}` : ''}`;
}

export class PairingView {
  /** @param {import('../core/api.js').Api} api @param {(token: string) => void} paired */
  constructor(api, paired) {
    this.api = api;
    this.paired = paired;
    this.field = h('input', {
      id: 'code',
      placeholder: 'ABCD-EFGH',
      autocomplete: 'one-time-code',
      autocapitalize: 'characters',
      spellcheck: false,
      maxLength: 32,
      'aria-describedby': 'pair-says',
      required: true,
    });
    this.button = h('button', { class: 'primary', type: 'submit' }, L.pair);
    this.says = h('p', { id: 'pair-says', class: 'says', role: 'status' });
    byId('pair').replaceChildren(
      h(
        'form',
        { class: 'card', onsubmit: (event) => this.#submit(event) },
        h('img', { src: 'icon.svg', alt: '', width: 64, height: 64 }),
        h('h1', {}, L.pairTitle),
        h('p', {}, L.pairLead),
        h('p', {}, `${L.pairHow} `, h('code', {}, L.pairCommand), ` ${L.pairThen}`),
        h('label', { for: 'code' }, L.pairField),
        h('div', { class: 'row' }, this.field, this.button),
        this.says,
      ),
    );
  }

  show(reason) {
    byId('pair').hidden = false;
    byId('app').hidden = true;
    document.documentElement.removeAttribute('data-paired');
    this.#say(reason || '');
    this.field.focus();
  }

  /** It was paired until now. */
  ended() {
    this.show(L.pairEnded);
  }

  #say(text) {
    setText(this.says, text);
  }

  #submit(event) {
    event.preventDefault();
    this.pair(this.field.value);
  }

  /** @param {string} typed  capitals and the dash are put right */
  async pair(typed) {
    const bare = typed.toUpperCase().replace(/[^A-Z0-9]/g, '');
    const code = bare.length === 8 ? `${bare.slice(0, 4)}-${bare.slice(4)}` : typed.trim().toUpperCase();
    this.button.disabled = true;
    setText(this.button, L.pairing);
    try {
      const { token } = await this.api.post('/api/pair', { code, name: ownName() });
      this.field.value = '';
      this.paired(token);
    } catch (error) {
      this.show(reasonOf(error));
      this.field.select();
    }
    this.button.disabled = false;
    setText(this.button, L.pair);
  }
}

function reasonOf(error) {
  if (error.status === 401) return L.pairWrong;
  if (error.status === 429) return L.pairSlow(error.retryAfterS || 60);
  if (error.status === 0) return L.pairLost;
  return error.message;
}
