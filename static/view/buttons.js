/** A button that copies, also where the clipboard API does not exist: on plain http at a LAN address. */

import { S } from '../core/strings.js';
import { h, setText } from './dom.js';
import { icon } from './icons.js';

/** @param {string} text @returns {Promise<boolean>} */
async function copy(text) {
  try {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return true;
    }
  } catch {
    // Refused; the old way may still be allowed.
  }
  const field = h('textarea', { class: 'unseen', value: text, readOnly: true, 'aria-hidden': 'true' });
  document.body.append(field);
  const had = document.activeElement;
  field.select();
  field.setSelectionRange(0, text.length);
  const done = document.execCommand('copy');
  field.remove();
  if (had instanceof HTMLElement) had.focus({ preventScroll: true });
  return done;
}

/** @param {() => string} text @returns {HTMLButtonElement} */
export function copyButton(text) {
  const word = h('span', { class: 'word' }, S.copy);
  const button = h(
    'button',
    { class: 'quiet', type: 'button', 'aria-label': S.copy, onclick: act },
    icon('copy'),
    word,
  );
  function show(mark, text) {
    button.firstChild.replaceWith(icon(mark));
    setText(word, text);
    button.setAttribute('aria-label', text);
    button.classList.toggle('told', mark === 'cross');
  }
  async function act() {
    const done = await copy(text());
    show(done ? 'check' : 'cross', done ? S.copied : S.copyFailed);
    setTimeout(() => show('copy', S.copy), 2000);
  }
  return button;
}
