// Finds the number whose hash with the salt is the challenge (ALTCHA's proof of work). Several
// workers share the numbers: each tries every `step`th one.
"use strict";

const ROUND_NUMBERS = Uint32Array.of(
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
  0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
  0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
  0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
  0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
  0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
  0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
  0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
);
const START = Uint32Array.of(
  0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
);
const schedule = new Uint32Array(64);

/** One block of SHA-256, for browsers that have no WebCrypto on plain http. */
function compress(state, view, offset) {
  for (let i = 0; i < 16; i += 1) schedule[i] = view.getUint32(offset + 4 * i);
  for (let i = 16; i < 64; i += 1) {
    const early = schedule[i - 15];
    const late = schedule[i - 2];
    const s0 = ((early >>> 7) | (early << 25)) ^ ((early >>> 18) | (early << 14)) ^ (early >>> 3);
    const s1 = ((late >>> 17) | (late << 15)) ^ ((late >>> 19) | (late << 13)) ^ (late >>> 10);
    schedule[i] = schedule[i - 16] + s0 + schedule[i - 7] + s1;
  }
  let [a, b, c, d, e, f, g, h] = state;
  for (let i = 0; i < 64; i += 1) {
    const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + ROUND_NUMBERS[i] + schedule[i]) | 0;
    const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    h = g;
    g = f;
    f = e;
    e = (d + t1) | 0;
    d = c;
    c = b;
    b = a;
    a = (t1 + t2) | 0;
  }
  state[0] += a;
  state[1] += b;
  state[2] += c;
  state[3] += d;
  state[4] += e;
  state[5] += f;
  state[6] += g;
  state[7] += h;
}

/** Hashes the same salt with many numbers. What every message begins with is hashed once. */
function hasher(salt) {
  const whole = Math.floor(salt.length / 64) * 64;
  const begun = Uint32Array.from(START);
  const begin = new DataView(salt.buffer, salt.byteOffset, salt.length);
  for (let offset = 0; offset < whole; offset += 64) compress(begun, begin, offset);
  const rest = salt.subarray(whole);
  const tail = new Uint8Array(128);
  const view = new DataView(tail.buffer);
  const state = new Uint32Array(8);
  return (number) => {
    const digits = String(number);
    const length = rest.length + digits.length;
    const end = length + 9 <= 64 ? 64 : 128;
    tail.fill(0);
    tail.set(rest);
    for (let i = 0; i < digits.length; i += 1) tail[rest.length + i] = digits.charCodeAt(i);
    tail[length] = 0x80;
    view.setUint32(end - 4, (whole + length) * 8);
    state.set(begun);
    compress(state, view, 0);
    if (end === 128) compress(state, view, 64);
    return state;
  };
}

function words(hex) {
  const bytes = hex.match(/^[0-9a-f]{64}$/) ? hex.match(/.{8}/g) : [];
  return Uint32Array.from(bytes, (part) => Number.parseInt(part, 16));
}

const PROGRESS_EVERY = 2000;

self.onmessage = ({ data: { salt, challenge, max, first, step } }) => {
  const wanted = words(challenge);
  const hash = hasher(new TextEncoder().encode(salt));
  let tried = 0;
  for (let number = first; number <= max; number += step) {
    const found = hash(number);
    if (found[0] === wanted[0] && found.every((word, i) => word === wanted[i])) {
      self.postMessage({ number });
      return;
    }
    tried += 1;
    if (tried % PROGRESS_EVERY === 0) self.postMessage({ tried: PROGRESS_EVERY });
  }
  self.postMessage({ ended: true });
};
