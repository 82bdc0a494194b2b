/** The tokens of a turn, in its footer; a tap opens its requests one by one. */

import { count, hitRate } from '../core/format.js';
import { S } from '../core/strings.js';
import { h } from './dom.js';

const percent = (usage) => Math.floor((hitRate(usage) || 0) * 100);

/** @param {{input:number, cacheRead:number, cacheWrite:number, output:number}} usage */
export function sumText(usage) {
  const { input, cacheRead, cacheWrite, output } = usage;
  return S.sum(count(input + cacheWrite), cacheRead ? count(cacheRead) : '', percent(usage), count(output));
}

/** For a narrow screen. */
function shortText(usage) {
  return S.sumShort(count(usage.input + usage.cacheWrite), percent(usage), count(usage.output));
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
    h('span', { class: 'only-desk' }, sumText(usage)),
    h('span', { class: 'only-phone' }, shortText(usage)),
  );
  function put(requests) {
    const change = () => {
      if (shown.requests) shown.requests.remove();
      else shown.node.append(requests);
    };
    // At the end the end stays in view; further up, the button stays where it was pressed.
    if (!shown.node.nextSibling) log.scroller.keep(change);
    else log.scroller.hold(button, change);
    shown.requests = requests;
    shown.node.classList.toggle('told', !!requests);
    button.setAttribute('aria-expanded', String(!!requests));
    if (requests) requests.scrollIntoView({ block: 'nearest' });
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
