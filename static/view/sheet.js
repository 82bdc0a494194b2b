/** A sheet over the page: the browser's own dialog, so focus stays in it and Escape closes it. */

import { S } from '../core/strings.js';
import { h } from './dom.js';
import { icon } from './icons.js';

/** @param {string} title @param {Node[]} body */
export function openSheet(title, body) {
  const close = h(
    'button',
    { class: 'icon-button', type: 'button', 'aria-label': S.close, onclick: () => sheet.close() },
    icon('close'),
  );
  const sheet = h(
    'dialog',
    { class: 'over', 'aria-label': title },
    h('header', {}, h('h2', {}, title), close),
    h('div', { class: 'over-body', tabIndex: 0 }, ...body),
  );
  const leave = () => sheet.close();
  sheet.addEventListener('close', () => {
    window.removeEventListener('hashchange', leave);
    sheet.remove();
  });
  // A press beside it lands on the dialog itself.
  sheet.addEventListener('click', (event) => event.target === sheet && sheet.close());
  window.addEventListener('hashchange', leave);
  document.body.append(sheet);
  sheet.showModal();
}
