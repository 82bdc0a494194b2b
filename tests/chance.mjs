// Chance that can be had again: the same numbers for the same seed.

/** Numbers below `n` by calling, and the usual draws. */
export function chance(seed) {
  // Two rounds of mixing, so that neighbouring seeds have nothing in common.
  let state = mix(mix(seed >>> 0));
  const below = (n) => {
    state = (state + 0x6d2b79f5) >>> 0;
    return mix(state) % n;
  };
  below.one = (list) => list[below(list.length)];
  below.in = (percent) => below(100) < percent;
  below.between = (low, high) => low + below(high - low + 1);
  /** One of `[weight, value]`s. */
  below.weighed = (list) => {
    let left = below(list.reduce((sum, [weight]) => sum + weight, 0));
    return list.find(([weight]) => (left -= weight) < 0)[1];
  };
  return below;
}

function mix(n) {
  let a = n >>> 0;
  a = Math.imul(a ^ (a >>> 15), a | 1);
  a ^= a + Math.imul(a ^ (a >>> 7), a | 61);
  return (a ^ (a >>> 14)) >>> 0;
}
