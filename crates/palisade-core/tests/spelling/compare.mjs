// Compares spellings with ICU. One line on stdin is `[character, its spelling, that of it between
// a and b]`; answers what differs (see spelling_collation.rs).
import readline from "node:readline";

const collator = new Intl.Collator("und", { sensitivity: "base" });
const spellings = new Map();
const ignored = [];
const isPlainHan = (text) => /^\p{Script=Han}$/u.test(text) && /^\p{Lo}$/u.test(text);

for await (const line of readline.createInterface({ input: process.stdin })) {
  const [text, spelling, within] = JSON.parse(line);
  if (/^[\p{Cn}\p{Co}]$/u.test(text)) continue;
  if (collator.compare(`a${text}b`, "ab") === 0 && within !== "ab") ignored.push(text);
  // Their order is that of their code points, and none is equal to another.
  if (isPlainHan(text) || /^[\uac00-\ud7a3]$/.test(text) || collator.compare(text, "") === 0) continue;
  spellings.set(text, spelling);
}

const letters = [..."abcdefghijklmnopqrstuvwxyz"];
const digits = [..."0123456789"];
const pairs = [...letters, ...digits].flatMap((a, _, own) => own.map((b) => a + b));
const triples = letters.flatMap((a) => letters.flatMap((b) => letters.map((c) => a + b + c)));
for (const text of [...pairs, ...triples]) spellings.set(text, text);

const apart = [];
const sorted = [...spellings.keys()].sort(collator.compare);
for (let at = 0; at < sorted.length; ) {
  let end = at + 1;
  while (end < sorted.length && collator.compare(sorted[at], sorted[end]) === 0) end++;
  const group = sorted.slice(at, end);
  const counts = new Map();
  for (const text of group) counts.set(spellings.get(text), (counts.get(spellings.get(text)) ?? 0) + 1);
  const score = (spelling) => (/^[a-z0-9]+$/.test(spelling) ? 1e6 : 0) + counts.get(spelling);
  const usual = [...counts.keys()].sort((a, b) => score(b) - score(a))[0];
  apart.push(...group.filter((text) => spellings.get(text) !== usual));
  at = end;
}

const together = [];
const firsts = new Map();
for (const [text, spelling] of [...spellings].reverse()) {
  const first = spellings.has(spelling) ? spelling : (firsts.get(spelling) ?? text);
  firsts.set(spelling, first);
  if (collator.compare(first, text) !== 0) together.push(text);
}
console.log(JSON.stringify({ ignored, apart, together, compared: spellings.size }));
