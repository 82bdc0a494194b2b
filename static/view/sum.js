/** The tokens of a turn, in its footer; a tap opens its requests one by one. */

import { count, hitRate } from '../core/format.js';
import { S } from '../core/strings.js';
import { h } from './dom.js';

/** @param {{input:number, cacheRead:number, cacheWrite:number, output:number}} usage */
export function sumText(usage) {
  const { input, cacheRead, cacheWrite, output } = usage;
  const percent = Math.floor((hitRate(usage) || 0) * 100);
  return S.sum(count(input + cacheWrite), cacheRead ? count(cacheRead) : '', percent, count(output));
}

/**
 * @param {object} usage
 * @param {{turn:any, node:HTMLElement, requests?:HTMLElement|null}} shown  the turn that it belongs to
 * @param {import('./log.js').LogView} log
 */
export function sumButton(usage, shown, log) {
  const button = h(
    'button',
    {
      class: 'quiet tokens-of',
      type: 'button',
      title: S.sumTitle,
      'aria-expanded': String(!!shown.requests),
      onclick: toggle,
    },
    sumText(usage),
  );
  function put(requests) {
    log.scroller.hold(button, () => {
      if (shown.requests) shown.requests.remove();
      else if (requests) shown.node.append(requests);
      shown.requests = shown.requests ? null : requests;
      shown.node.classList.toggle('told', !!shown.requests);
    });
    button.setAttribute('aria-expanded', String(!!shown.requests));
  }
  async function toggle() {
    if (shown.requests) return put(null);
    const first = shown.turn.items[0];
    const { seq } = first.rows[0] || first.results[0];
    button.disabled = true;
    const requests = await log.deeds.requests(shown.turn.turnId, seq);
    button.disabled = false;
    if (requests && !shown.requests && button.isConnected) put(requests);
  }
  return button;
}
