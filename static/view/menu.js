/** The menu of a tab, below its button: by pointer and arrow keys, gone with Escape or a press elsewhere. */

import { L } from '../core/strings-later.js';
import { h } from './dom.js';
import { drawn, icon } from './icons.js';

const PATHS = {
  compact: 'M4 10h12M10 2.5v5M7.5 5.5l2.5 2 2.5-2M10 17.5v-5M7.5 14.5l2.5-2 2.5 2',
  cache: 'M4 16v-6M8 16V5M12 16V8M16 16V4',
  rename: 'M4 16l.8-3.5L13.5 3.8l2.7 2.7-8.7 8.7z',
};

const idle = (tab) => tab.status === 'idle' || tab.status === 'error';

/** @param {HTMLButtonElement} button @param {any} tab @param {object} deeds */
export function openMenu(button, tab, deeds) {
  if (!tab || button.getAttribute('aria-expanded') === 'true') return;
  const close = (back) => {
    menu.remove();
    document.removeEventListener('pointerdown', outside, true);
    button.setAttribute('aria-expanded', 'false');
    if (back) button.focus();
  };
  const outside = (event) => {
    if (menu.contains(event.target)) return;
    // The button's own press closes, and does not open again.
    close(false);
    if (button.contains(event.target)) button.addEventListener('click', stop, { capture: true, once: true });
  };
  const item = (mark, word, deed, unless) =>
    h(
      'button',
      {
        class: 'line',
        type: 'button',
        role: 'menuitem',
        tabIndex: -1,
        disabled: !!unless,
        title: unless,
        onclick: () => {
          close(true);
          deed();
        },
      },
      mark,
      word,
    );
  const compactNot = idle(tab) ? (tab.total ? '' : L.compactEmpty) : L.compactBusy;
  const menu = h(
    'div',
    { class: 'menu', role: 'menu', 'aria-label': L.menu, onkeydown: move },
    item(drawn('rename', PATHS.rename), L.rename, deeds.rename),
    item(drawn('compact', PATHS.compact), L.compact, deeds.compact, compactNot),
    item(drawn('cache', PATHS.cache), L.cache, deeds.cache),
    item(icon('archive'), L.archive, deeds.archive),
  );
  function move(event) {
    const items = [...menu.querySelectorAll('button:not(:disabled)')];
    const at = items.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (to !== undefined) items.at(to % items.length).focus();
    else if (event.key === 'Escape' || event.key === 'Tab') close(true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
  document.addEventListener('pointerdown', outside, true);
  button.setAttribute('aria-expanded', 'true');
  button.after(menu);
  menu.querySelector('button').focus();
}

function stop(event) {
  event.preventDefault();
  event.stopImmediatePropagation();
}
