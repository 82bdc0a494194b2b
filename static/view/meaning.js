/** What an error means for the owner, by the server's own wordings, and what helps. */

import { L } from '../core/strings-later.js';

/**
 * @param {{message:string, status?:number}} data  of an `error` row
 * @returns {{title?:string, hint:string, compacts:boolean}} without a title where it is not known
 */
export function meaning({ message, status }) {
  const known = L.errors.find(([pattern]) => pattern.test(`${status || ''} ${message}`));
  if (!known) return { hint: L.errorHint, compacts: false };
  return { title: known[1], hint: known[2], compacts: known[3] === 'compact' };
}
