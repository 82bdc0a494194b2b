/** The last window, kept for an instant reload and replaced by the server's as soon as that comes. */

import { storageIn } from '../core/storage.js';

/** Of JSON; sessionStorage holds about 5 MB, and a large text takes time on an old phone. */
const REMEMBER_CHARS = 400_000;

/** @param {import('../core/session.js').Session} session @returns {() => void} brings it back */
export function rememberWindow(session) {
  const storage = storageIn(() => sessionStorage);
  window.addEventListener('pagehide', () => {
    session.keep();
    const log = session.window;
    storage.set('window', null);
    if (!log || !log.known || !log.following || !log.rows.length) return;
    let room = REMEMBER_CHARS;
    let from = log.rows.length;
    while (from > 0 && room >= log.rows[from - 1].bytes) {
      from -= 1;
      room -= log.rows[from].bytes + 200;
    }
    const tabs = [...session.tabs.values()];
    storage.set('window', { tab: log.tab, rows: log.rows.slice(from), total: log.total, tabs });
  });
  return () => {
    const kept = storage.get('window');
    if (!kept || !session.token || session.window) return;
    if (location.hash.length > 2 && location.hash !== `#/${kept.tab}`) return;
    session.recall(kept);
  };
}
