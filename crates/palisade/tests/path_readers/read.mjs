// Reads request targets, one JSON string a line, as Node programs do: with `URL` against
// a base and as part of an absolute one. Answers one JSON array a line, null for an error.
import { createInterface } from "node:readline";

const read = (make) => {
  try {
    return make().pathname;
  } catch {
    return null;
  }
};
const out = [];
for await (const line of createInterface({ input: process.stdin })) {
  const target = JSON.parse(line);
  out.push(
    JSON.stringify([
      read(() => new URL(target, "http://app")),
      read(() => new URL(`http://app${target}`)),
    ]),
  );
}
process.stdout.write(out.join("\n") + "\n");
