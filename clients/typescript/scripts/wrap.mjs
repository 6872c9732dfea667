// The package is compiled once, as CommonJS; an ES module of each entry hands on the same
// classes. With two compiled copies an application that loads both would have two `Blocked`,
// and `instanceof` would tell them apart.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const root = new URL("..", import.meta.url);
const file = (name) => new URL(`dist/${name}`, root);
const require = createRequire(import.meta.url);

writeFileSync(file("cjs/package.json"), '{ "type": "commonjs" }\n');
mkdirSync(file("esm"), { recursive: true });
const { exports } = JSON.parse(readFileSync(new URL("package.json", root), "utf8"));
for (const entry of Object.values(exports).filter((each) => typeof each === "object")) {
  const name = entry.require.default.replace("./dist/cjs/", "").replace(".js", "");
  const values = Object.keys(require(fileURLToPath(file(`cjs/${name}.js`)))).sort();
  writeFileSync(file(`esm/${name}.js`), `export { ${values.join(", ")} } from "../cjs/${name}.js";\n`);
  writeFileSync(file(`esm/${name}.d.ts`), `export * from "../cjs/${name}.js";\n`);
}
