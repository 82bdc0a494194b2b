/** Numbers, sizes and times as they are shown; in the reader's own zone. */

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const kib = bytes / 1024;
  if (kib < 1024) return `${kib < 10 ? kib.toFixed(1) : Math.round(kib)} KiB`;
  const mib = kib / 1024;
  if (mib < 1024) return `${mib < 10 ? mib.toFixed(1) : Math.round(mib)} MiB`;
  return `${(mib / 1024).toFixed(1)} GiB`;
}

/** @param {number} count  e.g. 950, 1.2k, 34k, 1.5M */
export function count(count) {
  if (count < 1000) return String(count);
  if (count < 999_500) return `${count < 9950 ? (count / 1000).toFixed(1) : Math.round(count / 1000)}k`;
  return `${(count / 1e6).toFixed(1)}M`;
}

/** @param {number} ms  a length of time */
export function span(ms) {
  if (ms < 1) return '<1 ms';
  if (ms < 100) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s % 60 ? ` ${s % 60} s` : ''}`;
  const min = Math.round(s / 60);
  if (min < 60 * 48) return `${Math.floor(min / 60)} h${min % 60 ? ` ${min % 60} min` : ''}`;
  return `${Math.round(min / 60 / 24)} days`;
}

/** @param {number} then @param {number} now  how long ago, in as few letters as will do */
export function age(then, now) {
  const min = Math.floor((now - then) / 60_000);
  if (min < 1) return 'now';
  if (min < 60) return `${min} min`;
  if (min < 60 * 24) return `${Math.floor(min / 60)} h`;
  if (min < 60 * 24 * 7) return `${Math.floor(min / 60 / 24)} d`;
  return new Date(then).toLocaleDateString(undefined, { day: 'numeric', month: 'short' });
}

/** @param {number} ms  the exact time, for hovering */
export function exact(ms) {
  return new Date(ms).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
}

/** @param {number} ms @param {number} now  the time of day; of another day, with its date */
export function clock(ms, now) {
  const at = new Date(ms);
  const time = { hour: 'numeric', minute: '2-digit' };
  const today = at.toDateString() === new Date(now).toDateString();
  return today
    ? at.toLocaleTimeString(undefined, time)
    : at.toLocaleString(undefined, { day: 'numeric', month: 'short', ...time });
}

/** Share of a request's input that came from the provider's cache, or null before any input. */
export function hitRate(usage) {
  const all = usage.input + usage.cacheRead + usage.cacheWrite;
  return all > 0 ? usage.cacheRead / all : null;
}
