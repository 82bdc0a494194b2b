/** A button that asks before it does. */

import { h, setText } from './dom.js';

const FORGET_MS = 5000;

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
