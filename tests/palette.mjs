// Makes a PNG of a page small: at most 256 colours, by index. A page has few colours, so little or nothing
// is lost.

import zlib from 'node:zlib';

const SIGNATURE = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);

function* chunks(png) {
  for (let at = SIGNATURE.length; at < png.length; ) {
    const length = png.readUInt32BE(at);
    yield { type: png.toString('latin1', at + 4, at + 8), data: png.subarray(at + 8, at + 8 + length) };
    at += length + 12;
  }
}

function chunk(type, data) {
  const body = Buffer.concat([Buffer.from(type, 'latin1'), data]);
  const whole = Buffer.alloc(body.length + 8);
  whole.writeUInt32BE(data.length, 0);
  body.copy(whole, 4);
  whole.writeUInt32BE(crc(body), body.length + 4);
  return whole;
}

function crc(bytes) {
  let sum = ~0;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return ~sum >>> 0;
}

function paeth(left, up, corner) {
  const guess = left + up - corner;
  const [a, b, c] = [Math.abs(guess - left), Math.abs(guess - up), Math.abs(guess - corner)];
  if (a <= b && a <= c) return left;
  return b <= c ? up : corner;
}

/** The pixels of an 8-bit RGB or RGBA picture, as numbers 0xRRGGBB. */
function pixels(png) {
  let [width, height, depth] = [0, 0, 0];
  const parts = [];
  for (const { type, data } of chunks(png)) {
    if (type === 'IHDR') {
      [width, height, depth] = [data.readUInt32BE(0), data.readUInt32BE(4), data[9] === 6 ? 4 : 3];
    }
    if (type === 'IDAT') parts.push(data);
  }
  const raw = zlib.inflateSync(Buffer.concat(parts));
  const line = width * depth;
  const all = new Uint32Array(width * height);
  let before = new Uint8Array(line);
  for (let y = 0; y < height; y += 1) {
    const filter = raw[y * (line + 1)];
    const now = Uint8Array.from(raw.subarray(y * (line + 1) + 1, (y + 1) * (line + 1)));
    for (let x = 0; x < line; x += 1) {
      const left = x < depth ? 0 : now[x - depth];
      const corner = x < depth ? 0 : before[x - depth];
      const up = before[x];
      now[x] += [0, left, up, (left + up) >> 1, paeth(left, up, corner)][filter];
    }
    for (let x = 0; x < width; x += 1) {
      const at = x * depth;
      all[y * width + x] = (now[at] << 16) | (now[at + 1] << 8) | now[at + 2];
    }
    before = now;
  }
  return { width, height, all };
}

function nearest(colour, palette) {
  const away = (other) =>
    [16, 8, 0].reduce((sum, shift) => sum + (((colour >> shift) & 255) - ((other >> shift) & 255)) ** 2, 0);
  return palette.reduce((best, other, at) => (away(other) < away(palette[best]) ? at : best), 0);
}

/** @param {Buffer} png @returns {Buffer} */
export function withPalette(png) {
  const { width, height, all } = pixels(png);
  const often = new Map();
  for (const colour of all) often.set(colour, (often.get(colour) ?? 0) + 1);
  const ranked = [...often].sort((a, b) => b[1] - a[1]).map(([colour]) => colour);
  // One of every kind of colour first, however rare: a small mark keeps its own.
  const kinds = new Map();
  for (const colour of ranked) if (!kinds.has(colour & 0xe0e0e0)) kinds.set(colour & 0xe0e0e0, colour);
  const palette = [...new Set([...kinds.values(), ...ranked])].slice(0, 256);
  const index = new Map(palette.map((colour, at) => [colour, at]));
  for (const colour of ranked) if (!index.has(colour)) index.set(colour, nearest(colour, palette));
  const rows = Buffer.alloc(height * (width + 1));
  for (let y = 0; y < height; y += 1)
    for (let x = 0; x < width; x += 1) rows[y * (width + 1) + 1 + x] = index.get(all[y * width + x]);
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([8, 3, 0, 0, 0], 8);
  const colours = Buffer.from(palette.flatMap((one) => [one >> 16, (one >> 8) & 255, one & 255]));
  return Buffer.concat([
    SIGNATURE,
    chunk('IHDR', head),
    chunk('PLTE', colours),
    chunk('IDAT', zlib.deflateSync(rows, { level: 9, memLevel: 9 })),
    chunk('IEND', Buffer.alloc(0)),
  ]);
}
