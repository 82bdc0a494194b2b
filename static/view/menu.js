/** The menu of a tab, below its button: by pointer and arrow keys, gone with Escape or a press elsewhere. */

import { L } from '../core/strings-later.js';
import { h } from './dom.js';
import { drawn, icon } from './icons.js';

const PATHS = {
  compact: 'M4 10h12M10 2.5v5M7.5 5.5l2.5 2 2.5-2M10 17.5v-5M7.5 14.5l2.5-2 2.5 2',
  cache: 'M4 16v-6M8 16V5M12 16V8M16 16V4',
  export: 'M10 3v9M6 8.5l4 4 4-4M4 16.5h12',
  rename: 'M4 16l.8-3.5L13.5 3.8l2.7 2.7-8.7 8.7z',
};

const idle = (tab) => tab.status === 'idle' || tab.status === 'error';

const NARROW = '(max-width: 760px)';

/**
 * @param {HTMLButtonElement} button  whose menu it is
 * @param {any} tab  may not exist yet
 * @param {object} deeds
 * @param {{efforts:string[], effort:string}} thinking  offered where the bar has no room for it
 */
export function openMenu(button, tab, deeds, { efforts, effort }) {
  if (button.getAttribute('aria-expanded') === 'true') return;
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
  const item = (mark, word, deed, more) => {
    const onclick = () => {
      close(true);
      deed();
    };
    const props = { class: 'line', type: 'button', role: 'menuitem', tabIndex: -1, onclick };
    return h('button', { ...props, ...more }, mark, word);
  };
  const menu = h(
    'div',
    { class: 'menu', role: 'menu', 'aria-label': L.menu, onkeydown: (event) => move(event, menu, close) },
    ...(tab ? deedsOf(tab, deeds, item) : []),
    ...(matchMedia(NARROW).matches ? effortsOf(efforts, effort, deeds, item) : []),
  );
  document.addEventListener('pointerdown', outside, true);
  button.setAttribute('aria-expanded', 'true');
  button.after(menu);
  menu.querySelector('button').focus();
}

function deedsOf(tab, deeds, item) {
  const not = idle(tab) ? (tab.total ? '' : L.compactEmpty) : L.compactBusy;
  return [
    item(drawn('rename', PATHS.rename), L.rename, deeds.rename),
    item(drawn('compact', PATHS.compact), L.compact, deeds.compact, { disabled: !!not, title: not }),
    item(drawn('cache', PATHS.cache), L.cache, deeds.cache),
    ...Object.entries(L.exports).map(([format, word]) =>
      item(drawn('export', PATHS.export), word, () => deeds.export(format)),
    ),
    item(icon('archive'), L.archive, deeds.archive),
  ];
}

/** A download leaves the page where it is, also when the device has just gone away. */
export function download(href) {
  h('a', { href, download: '' }).click();
}

function effortsOf(efforts, chosen, deeds, item) {
  if (!efforts.length) return [];
  const choices = ['', ...efforts].map((one) =>
    item(icon('check'), one || L.effortNone, () => deeds.pickEffort(one), {
      role: 'menuitemradio',
      'aria-checked': String(one === chosen),
    }),
  );
  return [h('p', { class: 'dim' }, L.effort), ...choices];
}

function move(event, menu, close) {
  const items = [...menu.querySelectorAll('button:not(:disabled)')];
  const at = items.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
  if (to !== undefined) items.at(to % items.length).focus();
  else if (event.key === 'Escape' || event.key === 'Tab') close(true);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function stop(event) {
  event.preventDefault();
  event.stopImmediatePropagation();
}
