/**
 * Buttons with a life of their own: copying, also where the clipboard API does not exist (on plain http at a
 * LAN address), and what asks before it does.
 */

import { S } from '../core/strings.js';
import { h, setText } from './dom.js';
import { icon } from './icons.js';

const FORGET_MS = 5000;

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
  const word = h('span', {}, S.copy);
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

/**
 * A button for what cannot be undone: one press asks, the next one does it; left alone it forgets.
 * @param {string} word @param {string} question @param {() => void} act
 */
export function sureButton(word, question, act) {
  const button = h('button', { class: 'quiet', type: 'button' }, word);
  let timer = 0;
  function calm() {
    clearTimeout(timer);
    timer = 0;
    button.classList.remove('sure');
    setText(button, word);
  }
  button.addEventListener('click', () => {
    if (timer) {
      calm();
      act();
      return;
    }
    button.classList.add('sure');
    setText(button, question);
    timer = setTimeout(calm, FORGET_MS);
  });
  return button;
}
