/** The package is found, with its types, however a project looks for modules. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const run = promisify(execFile);
const require = createRequire(import.meta.url);
const root = fileURLToPath(new URL("../..", import.meta.url));
const types = dirname(dirname(require.resolve("@types/node/package.json")));

const CONSUMER = `
import { BadInput, Palisade, type Answer, type OnUnavailable } from "palisade-client";
import { edgeLimit, type ExpressRequest } from "palisade-client/express";
import { edgeLimit as hook } from "palisade-client/fastify";
import { limited } from "palisade-client/fetch";
import { edgeLimit as hono, type HonoContext } from "palisade-client/hono";
import { FakePalisade } from "palisade-client/testing";

const onUnavailable: OnUnavailable = "closed";
const client: Palisade = new FakePalisade();
const edge = { client, trustedProxies: [], onUnavailable };
edgeLimit<ExpressRequest>(edge);
hook(edge);
hono<HonoContext>({ ...edge, peer: () => "203.0.113.5" });
limited({ ...edge, peer: () => "203.0.113.5" }, () => new Response("page"));

async function asked(): Promise<Answer> {
  return client.check({ ip: "203.0.113.5", method: "GET", path: "/" }, { onUnavailable });
}
asked().then(({ decision }) => console.log(decision, client instanceof Palisade, BadInput.name));

// @ts-expect-error types are found, so a mistake is one
export const wrong: number = asked();
`;

interface Project {
  type: "commonjs" | "module";
  module: string;
  moduleResolution: string;
}

const projects: Record<string, Project> = {
  "node10, CommonJS": { type: "commonjs", module: "commonjs", moduleResolution: "node10" },
  "node16, CommonJS": { type: "commonjs", module: "node16", moduleResolution: "node16" },
  "node16, ES modules": { type: "module", module: "node16", moduleResolution: "node16" },
  "nodenext, CommonJS": { type: "commonjs", module: "nodenext", moduleResolution: "nodenext" },
  "nodenext, ES modules": { type: "module", module: "nodenext", moduleResolution: "nodenext" },
  "bundler, ES modules": { type: "module", module: "esnext", moduleResolution: "bundler" },
};

/** A project with nothing but what `npm pack` would put into the package. */
function project({ type, module, moduleResolution }: Project): string {
  const home = mkdtempSync(join(tmpdir(), "palisade-consumer-"));
  const installed = join(home, "node_modules", "palisade-client");
  mkdirSync(installed, { recursive: true });
  for (const part of ["package.json", "dist/cjs", "dist/esm"]) {
    cpSync(join(root, part), join(installed, part), { recursive: true });
  }
  const compilerOptions = {
    ...{ target: "es2022", lib: ["es2022"], module, moduleResolution, strict: true, outDir: "out" },
    ...{ types: ["node"], typeRoots: [types], skipLibCheck: false },
  };
  writeFileSync(join(home, "package.json"), JSON.stringify({ type }));
  writeFileSync(join(home, "tsconfig.json"), JSON.stringify({ compilerOptions, files: ["app.ts"] }));
  writeFileSync(join(home, "app.ts"), CONSUMER);
  return home;
}

for (const [name, options] of Object.entries(projects)) {
  test(`n11: ${name}`, async () => {
    const home = project(options);
    try {
      const compiled = run(process.execPath, [require.resolve("typescript/bin/tsc"), "-p", home]);
      await compiled.catch((error: { stdout: string }) => assert.fail(error.stdout));
      const { stdout } = await run(process.execPath, [join(home, "out", "app.js")]);
      assert.equal(stdout, "allow true BadInput\n");
    } finally {
      rmSync(home, { recursive: true });
    }
  });
}

test("n11: both ways to load it are one package", async () => {
  const required = require("palisade-client") as typeof import("palisade-client");
  const imported = await import("palisade-client");
  assert.equal(required.Blocked, imported.Blocked);
  assert.deepEqual(Object.keys(required).sort(), Object.keys(imported).sort());
});
