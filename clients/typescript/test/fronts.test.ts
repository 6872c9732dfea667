/** Express, Fastify, Hono and a plain fetch handler on real sockets: one set of tests. */

import assert from "node:assert/strict";
import http from "node:http";
import { test } from "node:test";

import { getConnInfo } from "@hono/node-server/conninfo";
import { getRequestListener } from "@hono/node-server";
import express from "express";
import fastify from "fastify";
import { Hono, type Context } from "hono";

import * as onExpress from "palisade-client/express";
import * as onFastify from "palisade-client/fastify";
import * as onFetch from "palisade-client/fetch";
import * as onHono from "palisade-client/hono";
import { Caps, Palisade, type Identity, type Layers, type OnUnavailable } from "palisade-client";
import { freeUrl, listen, PATIENT, send, Server, stub } from "./common.js";

const REPORTS = `
[[route]]
path = "/reports/*"
class = "reports"
scope = "reports:read"

[[limit]]
name = "reports-per-org"
by = ["org"]
class = "reports"
rate = "10/min"

[[limit]]
name = "reports-per-address"
by = ["ip"]
class = "reports"
rate = "15/min"
`;

interface Wanted {
  url: string;
  onUnavailable?: OnUnavailable;
  layers?: Layers | "none";
  deadlineMs?: number;
}

interface Front {
  port: number;
  reached: () => number;
}

/** What every front is made of: one page, one login, an identity from headers. */
function parts({ url, onUnavailable = "closed", layers = "all", deadlineMs = 30_000 }: Wanted) {
  const client = new Palisade(url, { ...PATIENT, deadlineMs });
  const guard = client.guard({ onUnavailable: "closed" });
  let reached = 0;
  const identity = (header: (name: string) => string | undefined): Identity | null => {
    const org = header("x-org");
    return org === undefined ? null : { org, user: "u1", token: "t1", scopes: (header("x-scopes") ?? "").split(" ") };
  };
  const login = (ip: string, query: URLSearchParams) => {
    const account = query.get("account") ?? "";
    return guard.login({ ip, account, username: account, device: { clientId: "d1" } }, (attempt) => {
      const right = query.get("password") === "right";
      if (right) attempt.success();
      return right ? 204 : 401;
    });
  };
  return {
    edge: { client, trustedProxies: ["127.0.0.1"], onUnavailable, layers },
    after: { client, onUnavailable },
    identity,
    login,
    reach: () => (reached += 1),
    reached: () => reached,
  };
}

const query = (url: string) => new URL(url, "http://x").searchParams;

async function byExpress(wanted: Wanted): Promise<Front> {
  const { edge, after, identity, login, reach, reached } = parts(wanted);
  const app = express();
  app.use(onExpress.edgeLimit<express.Request>(edge));
  app.use(onExpress.identityLimit<express.Request>({ ...after, identity: (r) => identity((name) => r.get(name)) }));
  app.post("/session", async (request, response) => {
    response.status(await login(onExpress.seen(request).ip, query(request.url))).end();
  });
  app.post("/auth/token", (request, response) => {
    reach();
    response.send(onExpress.seen(request).ip);
  });
  app.use((request, response) => {
    reach();
    response.send(onExpress.seen(request).ip);
  });
  app.use(onExpress.refusals());
  return { port: await listen(http.createServer(app)), reached };
}

async function byFastify(wanted: Wanted): Promise<Front> {
  const { edge, after, identity, login, reach, reached } = parts(wanted);
  const app = fastify();
  app.addHook("onRequest", onFastify.edgeLimit(edge));
  app.addHook(
    "preHandler",
    onFastify.identityLimit({ ...after, identity: (r) => identity((name) => r.headers[name] as string | undefined) }),
  );
  app.setErrorHandler((error, _request, reply) => {
    if (!onFastify.sentRefusal(error, reply)) void reply.code(500).send();
  });
  app.post("/session", async (request, reply) => {
    return reply.code(await login(onFastify.seen(request).ip, query(request.url))).send();
  });
  app.all("/*", (request, reply) => {
    reach();
    void reply.send(onFastify.seen(request).ip);
  });
  await app.ready();
  const server = http.createServer((request, response) => app.routing(request, response));
  return { port: await listen(server), reached };
}

async function byHono(wanted: Wanted): Promise<Front> {
  const { edge, after, identity, login, reach, reached } = parts(wanted);
  const app = new Hono();
  const peer = (c: Context) => getConnInfo(c).remote.address;
  app.use(onHono.edgeLimit<Context>({ ...edge, peer }));
  app.use(onHono.identityLimit<Context>({ ...after, identity: (c) => identity((name) => c.req.header(name)) }));
  app.post("/session", async (c) => c.body(null, (await login(onHono.seen(c).ip, query(c.req.url))) as 204));
  app.all("*", (c) => {
    reach();
    return c.text(onHono.seen(c).ip);
  });
  return { port: await listen(http.createServer(getRequestListener(app.fetch))), reached };
}

async function byFetch(wanted: Wanted): Promise<Front> {
  const { edge, identity, login, reach, reached } = parts(wanted);
  type Info = { incoming: http.IncomingMessage };
  const handler = onFetch.limited<[Info]>(
    {
      ...edge,
      peer: (_request, { incoming }) => incoming.socket.remoteAddress,
      identity: (request) => identity((name) => request.headers.get(name) ?? undefined),
    },
    async (request, seen) => {
      const { pathname, searchParams } = new URL(request.url);
      if (pathname === "/session") return new Response(null, { status: await login(seen.ip, searchParams) });
      reach();
      return new Response(seen.ip);
    },
  );
  const listener = getRequestListener((request, env) => handler(request, env as Info));
  return { port: await listen(http.createServer(listener)), reached };
}

const fronts = { Express: byExpress, Fastify: byFastify, Hono: byHono, fetch: byFetch };

for (const [name, front] of Object.entries(fronts)) {
  test(`${name}: ten pass and the eleventh gets the decision`, async () => {
    const { port, reached } = await front({ url: (await Server.start()).url });
    for (let left = 9; left >= 0; left -= 1) {
      const passed = await send(port, "POST", "/auth/token", { "X-Forwarded-For": "1.1.1.1, 198.51.100.7" });
      assert.equal(passed.status, 200);
      assert.equal(passed.body, "198.51.100.7");
      assert.equal(passed.headers["x-ratelimit-limit"], "10");
      assert.equal(passed.headers["x-ratelimit-remaining"], String(left));
    }
    const refused = await send(port, "POST", "/auth/token", { "X-Forwarded-For": "198.51.100.7" });
    assert.equal(refused.status, 429);
    assert.equal(reached(), 10);
    assert.ok(Number(refused.headers["retry-after"]) >= 1);
    assert.match(String(refused.headers["content-type"]), /^application\/json/);
    assert.equal(refused.json()["error"], "rate_limit_exceeded");
    assert.equal(refused.json()["request_id"], refused.headers["x-request-id"]);
  });

  test(`${name}: two hundred at once reach the application ten times`, async () => {
    const { port, reached } = await front({ url: (await Server.start()).url });
    const sent = await Promise.all(Array.from({ length: 200 }, () => send(port, "POST", "/auth/token")));
    assert.equal(sent.filter(({ status }) => status === 200).length, 10);
    assert.equal(sent.filter(({ status }) => status === 429).length, 190);
    assert.equal(reached(), 10);
  });

  test(`${name}: a proxy that is not trusted, or makes no sense, changes nothing`, async () => {
    const { port } = await front({ url: (await Server.start()).url });
    const spoofed = await send(port, "GET", "/", { "X-Forwarded-For": "198.51.100.9" }, "127.0.0.2");
    assert.equal(spoofed.body, "127.0.0.2");
    for (const chain of ["nonsense", "1".repeat(501)]) {
      const refused = await send(port, "GET", "/", { "X-Forwarded-For": chain });
      assert.equal(refused.status, 400);
      assert.equal(refused.json()["error"], "bad_request");
    }
  });

  test(`${name}: no spelling of a path is counted as another`, async () => {
    const { port, reached } = await front({ url: (await Server.start()).url });
    for (let n = 0; n < 10; n += 1) assert.equal((await send(port, "POST", "/auth/token?n=1")).status, 200);
    const spellings = ["/auth/token", "/auth/%74oken", "/auth/token#x", "http://elsewhere/auth/token"];
    if (name === "Express") spellings.push("/AUTH/Token", "/auth/token/", "/Auth/Token/?x");
    for (const spelling of spellings) {
      const { status } = await send(port, "POST", spelling);
      assert.ok(status === 429 || status === 400, `${spelling}: ${status}`);
    }
    assert.equal(reached(), 10);
  });

  test(`${name}: a path that routers read in two ways is refused`, async () => {
    const { url } = await Server.start();
    for (const layers of ["all", "none"] as const) {
      const { port, reached } = await front({ url, layers });
      const refused = ["/auth%2Ftoken", "/auth%5ctoken"];
      // The others get a `Request`, whose URL has no dot segments any more.
      if (["Express", "Fastify"].includes(name)) refused.push("/auth/../free", "/auth/%2e%2E/free", "/./free", "/free/..");
      for (const path of refused) {
        const { status, body } = await send(port, "GET", path);
        assert.deepEqual([status, JSON.parse(body).field], [400, "path"], path);
      }
      assert.equal(reached(), 0);
      for (const path of ["/a.b/..c", "/%252e%252e/b", "/...", "/a%20b"]) {
        assert.equal((await send(port, "GET", path)).status, 200, path);
      }
    }
  });

  test(`${name}: palisade away is answered as chosen`, async () => {
    const url = await freeUrl();
    const caps = new Caps({ perKey: 2, total: 100, windowMs: 60_000 });
    const wanted: [OnUnavailable, number[]][] = [
      ["closed", [503, 503, 503]],
      ["open", [200, 200, 200]],
      [caps, [200, 200, 429]],
    ];
    for (const [onUnavailable, statuses] of wanted) {
      const { port } = await front({ url, onUnavailable });
      for (const status of statuses) assert.equal((await send(port, "GET", "/")).status, status);
    }
  });

  test(`${name}: palisade that does not answer costs no more than the deadline`, async () => {
    const { url } = await stub(() => undefined);
    const { port } = await front({ url, deadlineMs: 300 });
    const began = performance.now();
    assert.equal((await send(port, "GET", "/")).status, 503);
    const took = performance.now() - began;
    assert.ok(took >= 290 && took < 8_000, `${took}`);
  });

  test(`${name}: a login stops guessing`, async () => {
    const { port } = await front({ url: (await Server.start()).url, layers: "none" });
    const attempt = (account: string, password: string) =>
      send(port, "POST", `/session?account=${account}&password=${password}`);
    assert.equal((await attempt("ann", "right")).status, 204);
    assert.equal((await attempt("bob", "wrong")).status, 401);
    assert.equal((await attempt("bob", "wrong")).status, 401);
    const refused = await attempt("bob", "right");
    assert.equal(refused.status, 429);
    assert.ok(refused.headers["retry-after"]);
    assert.ok(refused.json()["request_id"]);
    assert.equal((await attempt("ann", "right")).status, 204);
  });

  test(`${name}: n3: bad input is a 400 that names the field and not its value`, async () => {
    const { port } = await front({ url: (await Server.start()).url, layers: "none" });
    for (const account of ["", "n".repeat(600), "ann%00"]) {
      const refused = await send(port, "POST", `/session?account=${account}&password=right`);
      assert.equal(refused.status, 400);
      assert.equal(refused.json()["error"], "bad_request");
      assert.equal(refused.json()["field"], "account");
      assert.equal(refused.json()["request_id"], refused.headers["x-request-id"]);
      assert.ok(!refused.body.includes("nnn"));
    }
  });

  test(`${name}: l_layers the address is charged once, the organisation after authentication`, async () => {
    const { port, reached } = await front({ url: (await Server.start(REPORTS)).url, layers: "edge" });
    const report = (org: string, ip: string, scopes = "reports:read") =>
      send(port, "GET", "/reports/x", { "X-Org": org, "X-Scopes": scopes, "X-Forwarded-For": ip });
    for (let left = 9; left >= 0; left -= 1) {
      const passed = await report("acme", `198.51.100.${left}`);
      assert.equal(passed.status, 200);
      assert.equal(passed.headers["x-ratelimit-remaining"], String(left), "the org's is tightest");
    }
    assert.equal((await report("acme", "198.51.100.99")).status, 429);
    assert.equal(reached(), 10);
    const statuses = [];
    for (let n = 0; n < 16; n += 1) statuses.push((await report(`org-${n}`, "198.51.100.50")).status);
    assert.deepEqual(statuses, [...Array<number>(15).fill(200), 429]);
    assert.equal((await report("other", "198.51.100.60", "none")).status, 403, "t_scope");
    const before = reached();
    const nobody = await send(port, "GET", "/reports/x", { "X-Forwarded-For": "198.51.100.61" });
    assert.equal(nobody.status, 403, "n4: nobody is refused where the route has a scope");
    assert.equal(reached(), before);
    assert.equal((await send(port, "GET", "/", { "X-Forwarded-For": "198.51.100.61" })).status, 200);
  });
}
