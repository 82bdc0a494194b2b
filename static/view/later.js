/**
 * What a visit does not need at once: modules that are fetched when they are first wanted, with the one
 * style that they share.
 *
 * A browser may remember that a module could not be had, so a further try asks by another address.
 */

import { ApiError } from '../core/api.js';
import { h } from './dom.js';

const STYLE = 'style/later.css';

const fetched = new Map();
let styled = null;
let failures = 0;

function style() {
  styled ||= new Promise((done, fail) => {
    const link = h('link', { rel: 'stylesheet', href: STYLE, onload: done });
    link.addEventListener('error', () => {
      link.remove();
      styled = null;
      fail(new Error(STYLE));
    });
    document.head.append(link);
  });
  return styled;
}

/**
 * @param {string} name  of a module beside this one
 * @returns {Promise<any>} the module; if the device does not answer, an error as of any other call to it
 */
export function later(name) {
  if (!fetched.has(name)) {
    const module = import(failures ? `./${name}.js?${failures}` : `./${name}.js`);
    const both = Promise.all([module, style()]).then(
      ([loaded]) => loaded,
      () => {
        fetched.delete(name);
        failures += 1;
        throw new ApiError(0, 'unreachable', 'no answer from the device');
      },
    );
    fetched.set(name, both);
  }
  return fetched.get(name);
}
