/** The page of the documentation does what it says. */

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import http from "node:http";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { freeUrl, send, Server } from "./common.js";

const compiled = (name: string) => fileURLToPath(new URL(`./page/${name}.js`, import.meta.url));
const policy = readFileSync(new URL("../../test/page/policy.toml", import.meta.url), "utf8");
const environment = (server: Server, port = "0") => ({ ...process.env, PALISADE: server.url, PORT: port });

test("ask", async () => {
  const server = await Server.start(policy);
  const { stdout } = await promisify(execFile)(process.execPath, [compiled("ask")], {
    env: environment(server),
  });
  assert.equal(stdout, "allow 200 9\n");
});

test("chat", async () => {
  const server = await Server.start(policy);
  const { stdout } = await promisify(execFile)(process.execPath, [compiled("chat")], {
    env: environment(server),
  });
  assert.equal(stdout, "HELLO\n429 rate_limit_exceeded\n");
});

test("doubles", async () => {
  // Otherwise it would report to the runner of this file.
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const { stdout } = await promisify(execFile)(process.execPath, [compiled("login.test")], { env });
  assert.match(stdout, /^# pass 3$/m);
});

/** Starts a program of the page and waits until it answers. */
async function started(name: string, server: Server, t: { after: (end: () => void) => void }): Promise<number> {
  const port = Number((await freeUrl()).split(":").at(-1));
  const child = spawn(process.execPath, [compiled(name)], { env: environment(server, String(port)), stdio: "inherit" });
  t.after(() => child.kill("SIGKILL"));
  for (let tries = 0; tries < 3_000; tries += 1) {
    if (child.exitCode !== null) break;
    try {
      await send(port, "GET", "/");
      return port;
    } catch {
      await new Promise((resume) => setTimeout(resume, 20));
    }
  }
  throw new Error(`${name} did not start`);
}

function signIn(port: number, username: string, password: string, asForm: boolean): Promise<number> {
  const body = asForm
    ? new URLSearchParams({ username, password }).toString()
    : JSON.stringify({ username, password });
  const type = asForm ? "application/x-www-form-urlencoded" : "application/json";
  return new Promise((resolve, reject) => {
    const headers = { "Content-Type": type, "X-Device": "d1" };
    const options = { host: "127.0.0.1", port, method: "POST", path: "/session", headers, agent: false };
    const request = http.request(options, (response) => {
      response.resume();
      response.on("end", () => resolve(response.statusCode ?? 0));
    });
    request.on("error", reject);
    request.end(body);
  });
}

for (const name of ["express", "fastify", "hono"]) {
  test(name, async (t) => {
    const server = await Server.start(policy);
    const port = await started(name, server, t);
    const report = await send(port, "GET", "/reports/2026", { Authorization: "Bearer demo" });
    assert.equal(report.status, 200);
    assert.ok(report.headers["x-ratelimit-limit"]);
    assert.equal((await send(port, "GET", "/reports/2026")).status, 403, "n4");
    const attempt = (who: string, password: string) => signIn(port, who, password, name === "express");
    assert.equal(await attempt("ann", "correct horse"), 200);
    assert.equal(await attempt("", "guess"), 400, "n3");
    assert.equal(await attempt("n".repeat(600), "guess"), 400, "n3");
    assert.equal((await send(port, "POST", "/session")).status, 400, "no body");
    assert.equal(await attempt("bob", "guess"), 401);
    assert.equal(await attempt("bob", "guess"), 401);
    assert.equal(await attempt("bob", "correct horse"), 429);
  });
}

test("route", async () => {
  const server = await Server.start(policy);
  process.env["PALISADE"] = server.url;
  const { GET } = (await import(compiled("route"))) as { GET: (request: Request) => Promise<Response> };
  const headers = { Authorization: "Bearer demo", "X-Forwarded-For": "1.1.1.1, 198.51.100.7" };
  const passed = await GET(new Request("http://shop/reports/2026", { headers }));
  assert.equal(passed.status, 200);
  assert.ok(passed.headers.get("X-RateLimit-Limit"));
  const nobody = new Request("http://shop/reports/2026", { headers: { "X-Forwarded-For": "198.51.100.7" } });
  assert.equal((await GET(nobody)).status, 403, "n4");
  assert.equal((await GET(new Request("http://shop/reports/2026"))).status, 400, "nobody said whose it is");
});
