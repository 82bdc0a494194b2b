/**
 * Dark and light: as the system, unless a switch says otherwise. `early.js` applies it before the first
 * paint.
 */

import { S } from '../core/strings.js';
import { h } from './dom.js';
import { icon } from './icons.js';

const ORDER = ['system', 'light', 'dark'];
const ICONS = { system: 'auto', light: 'sun', dark: 'moon' };
const KEY = 'siskin.theme';

function stored() {
  try {
    const theme = localStorage.getItem(KEY);
    return theme && ORDER.includes(theme) ? theme : 'system';
  } catch {
    return 'system';
  }
}

function apply(theme) {
  const root = document.documentElement;
  if (theme === 'system') root.removeAttribute('data-theme');
  else root.setAttribute('data-theme', theme);
  for (const meta of document.querySelectorAll('meta[name=theme-color]')) {
    meta.setAttribute('content', getComputedStyle(root).getPropertyValue('--paper').trim());
  }
}

export function themeButton() {
  const button = h('button', { class: 'icon-button', type: 'button', onclick: next });
  function show() {
    const label = S.theme[stored()];
    button.replaceChildren(icon(ICONS[stored()]));
    button.setAttribute('aria-label', label);
    button.title = label;
  }
  function next() {
    const theme = ORDER[(ORDER.indexOf(stored()) + 1) % ORDER.length];
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // It holds until the page is left.
    }
    apply(theme);
    show();
  }
  show();
  apply(stored());
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => apply(stored()));
  return button;
}
