// Prints src/spelling/tables.rs: how ICU's root collation compares characters at its first level,
// as far as Unicode's decompositions, cases and digits do not say it. Run it with a Node that has
// full ICU when Unicode changes:
//
//     node tests/spelling/tables.mjs > src/spelling/tables.rs
const collator = new Intl.Collator("und", { sensitivity: "base" });
const MARK = /^[\p{Mn}\p{Me}\p{Cf}]$/u;
const isIgnored = (text) => collator.compare(text, "") === 0;

const characters = [];
for (let point = 0x20; point < 0x110000; point++) {
  if (point >= 0xd800 && point < 0xe000) continue;
  const text = String.fromCodePoint(point);
  if (!/^[\p{Cn}\p{Co}\p{Cc}]$/u.test(text)) characters.push(text);
}

const hex = (point) => `\\u{${point.toString(16)}}`;
const literal = (text) =>
  [...text].map((c) => (/^[a-z0-9 ]$/.test(c) ? c : hex(c.codePointAt(0)))).join("");

// Ranges that hold the chosen characters and none of the others.
function ranges(chosen, others) {
  const found = [];
  for (const text of characters) {
    if (chosen(text)) {
      const point = text.codePointAt(0);
      const last = found.at(-1);
      if (last?.open) last.to = point;
      else found.push({ from: point, to: point, open: true });
    } else if (others(text) && found.length) found.at(-1).open = false;
  }
  return found.map(({ from, to }) => `('${hex(from)}', '${hex(to)}')`);
}

function print(name, type, doc, entries) {
  console.log(`\n/// ${doc}\n#[rustfmt::skip]\npub(super) static ${name}: [${type}; ${entries.length}] = [`);
  for (let at = 0; at < entries.length; at += 4) console.log(`    ${entries.slice(at, at + 4).join(", ")},`);
  console.log("];");
}

function plain(text) {
  let found = "";
  const kept = (text) => [...text.normalize("NFKD")].filter((c) => !(MARK.test(c) && isIgnored(c))).join("");
  for (const c of kept(text)) found += /^\p{Nd}$/u.test(c) ? digit(c) : c.toUpperCase().toLowerCase();
  return kept(found).trim();
}

function digit(text) {
  const point = text.codePointAt(0);
  let from = point;
  while (/^\p{Nd}$/u.test(String.fromCodePoint(from - 1))) from--;
  return String((point - from) % 10);
}

function equals() {
  const isPlainHan = (text) => /^\p{Script=Han}$/u.test(text) && /^\p{Lo}$/u.test(text);
  const all = characters.filter((text) => !isPlainHan(text) && !/^[\uac00-\ud7a3]$/.test(text) && !isIgnored(text));
  const letters = [..."abcdefghijklmnopqrstuvwxyz"];
  const pairs = [...letters, ..."0123456789"].flatMap((a, _, own) => own.map((b) => a + b));
  const triples = letters.flatMap((a) => letters.flatMap((b) => letters.map((c) => a + b + c)));
  const sorted = [...all, ...pairs, ...triples].sort(collator.compare);
  const found = new Map();
  for (let at = 0; at < sorted.length; ) {
    let end = at + 1;
    while (end < sorted.length && collator.compare(sorted[at], sorted[end]) === 0) end++;
    const counts = new Map();
    for (const text of sorted.slice(at, end)) counts.set(plain(text), (counts.get(plain(text)) ?? 0) + 1);
    const score = ([text, count]) => (/^[a-z0-9]+$/.test(text) ? 1e6 : 0) + count;
    const [target] = [...counts].sort((a, b) => score(b) - score(a))[0];
    for (const text of counts.keys()) if (text !== target && [...text].length === 1) found.set(text, target);
    at = end;
  }
  const entries = [...found].sort(([a], [b]) => a.codePointAt(0) - b.codePointAt(0));
  return entries.map(([text, target]) => `('${hex(text.codePointAt(0))}', "${literal(target)}")`);
}

console.log(`//! How ICU ${process.versions.icu} (Unicode ${process.versions.unicode}) compares characters at its first level.`);
console.log("//! Printed by tests/spelling/tables.mjs; do not edit.");
const isLetterMark = (text) => MARK.test(text) && !isIgnored(text);
print("LETTER_MARKS", "(char, char)", "Marks that are letters, mostly vowels: ranges, of which only marks count.",
  ranges(isLetterMark, (text) => MARK.test(text)));
const isOther = (text) => isIgnored(text) && !MARK.test(text);
print("IGNORED", "(char, char)", "Characters other than marks that are passed over: ranges.", ranges(isOther, (text) => !isOther(text)));
print("EQUALS", "(char, &str)", "Characters that are compared as others.", equals());
