/** A tab without rows: four things to ask; or, without any model, what to put in the config. */

import { S } from '../core/strings.js';
import { h } from './dom.js';
import { icon } from './icons.js';

/** @param {{send:(text:string)=>void, models:()=>any, status:()=>any, lookAgain:()=>void}} deeds */
export function emptyPage(deeds) {
  const offer = deeds.models();
  if (offer && !offer.models.length) return noModel(offer.errors || [], deeds);
  const buttons = S.suggestions.map(([title, text]) =>
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
    h('h1', {}, S.emptyTitle),
    h('div', { class: 'suggestions' }, ...buttons),
  );
}

function noModel(errors, deeds) {
  const told = errors.length && [
    h('p', {}, S.noModelErrors),
    h(
      'ul',
      { class: 'cause' },
      ...errors.map((one) => h('li', {}, h('b', {}, one.provider), ` ${one.message}`)),
    ),
  ];
  return h(
    'div',
    { class: 'welcome help' },
    h('h1', {}, S.noModelTitle),
    ...(told || []),
    h('p', {}, S.noModelLead),
    h('pre', {}, S.noModelConfig),
    h('p', {}, S.noModelCloud),
    h('pre', {}, S.noModelCloudConfig),
    h('p', {}, S.noModelCheck),
    h('button', { class: 'plain', type: 'button', onclick: deeds.lookAgain }, icon('again'), S.lookAgain),
  );
}
