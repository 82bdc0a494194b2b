/** JSON values by key in the browser's storage; a full or forbidden storage is as good as an empty one. */

const PREFIX = 'siskin.';

/** @param {() => Storage} place  asked each time, since even naming a forbidden storage throws */
export function storageIn(place) {
  return {
    get(key) {
      try {
        return JSON.parse(place().getItem(PREFIX + key));
      } catch {
        return null;
      }
    },
    set(key, value) {
      try {
        if (value === null || value === undefined || value === '') place().removeItem(PREFIX + key);
        else place().setItem(PREFIX + key, JSON.stringify(value));
      } catch {
        // Nothing depends on it but comfort.
      }
    },
  };
}
