/** A tab without rows: four things to ask; or, without any model, what to put in the config. */

import { L } from '../core/strings-later.js';
import { h } from './dom.js';
import { icon } from './icons.js';

/** @param {{send:(text:string)=>void, models:()=>any, status:()=>any, lookAgain:()=>void}} deeds */
export function emptyPage(deeds) {
  const offer = deeds.models();
  if (offer && !offer.models.length) return noModel(offer.errors || [], deeds);
  const buttons = L.suggestions.map(([title, text]) =>
    h(
      'button',
      { class: 'suggestion', type: 'button', title: text, onclick: () => deeds.send(text) },
      title,
    ),
  );
  return h(
    'div',
    { class: 'welcome' },
    h('img', { src: 'icon.svg', alt: '', width: 56, height: 56 }),
    h('h1', {}, L.emptyTitle),
    h('div', { class: 'suggestions' }, ...buttons),
  );
}

function noModel(errors, deeds) {
  const told = errors.length && [
    h('p', {}, L.noModelErrors),
    h(
      'ul',
      { class: 'cause' },
      ...errors.map((one) => h('li', {}, h('b', {}, one.provider), ` ${one.message}`)),
    ),
  ];
  return h(
    'div',
    { class: 'welcome help' },
    h('h1', {}, L.noModelTitle),
    ...(told || []),
    h('p', {}, L.noModelLead),
    h('pre', {}, L.noModelConfig),
    h('p', {}, L.noModelCloud),
    h('pre', {}, L.noModelCloudConfig),
    h('p', {}, L.noModelCheck),
    h('button', { class: 'plain', type: 'button', onclick: deeds.lookAgain }, icon('again'), L.lookAgain),
  );
}
