// Writes every block of docs/typescript.md as the file that its first line names, so that
// the compiler reads it with the tests.
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const docs = process.env.PALISADE_DOCS ?? new URL("../../../docs", import.meta.url).pathname;
const text = readFileSync(join(docs, "typescript.md"), "utf8");
const folder = new URL("../test/page", import.meta.url).pathname;
rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });

const blocks = [...text.matchAll(/^```(?:ts|toml)\n(?:\/\/|#) (\S+)\n(.*?)^```$/gms)];
if (blocks.length !== [...text.matchAll(/^```(?:ts|toml)$/gm)].length) {
  throw new Error("a block has no name");
}
// A busy machine may need longer than the default deadline.
const [given, longer] = ['"http://127.0.0.1:8080")', '"http://127.0.0.1:8080", { deadlineMs: 30_000 })'];
for (const [, name, block] of blocks) {
  if (name.endsWith(".ts") && !name.endsWith(".test.ts") && !block.includes(given)) throw new Error(`${name} makes no client`);
  writeFileSync(join(folder, name), block.replace(given, longer));
}
