/** The decision API, against a real server and against ones that misbehave. */

import assert from "node:assert/strict";
import dns from "node:dns";
import net from "node:net";
import { test } from "node:test";

import { BadFacts, BadInput, Caps, Misconfigured, Palisade, type RequestFacts } from "palisade-client";
import { allow, freeUrl, listen, PATIENT, Server, stub } from "./common.js";

const signIn = (ip = "203.0.113.7"): RequestFacts => ({ ip, method: "POST", path: "/auth/token" });
const CLOSED = { onUnavailable: "closed" } as const;
const OPEN = { onUnavailable: "open" } as const;

test("ten pass and the eleventh is refused with headers and body", async () => {
  const client = new Palisade((await Server.start()).url, PATIENT);
  for (let left = 9; left >= 0; left -= 1) {
    const answer = await client.check(signIn(), CLOSED);
    assert.equal(answer.allowed, true);
    assert.equal(answer.headers["X-RateLimit-Remaining"], String(left));
  }
  const refused = await client.check(signIn(), OPEN);
  assert.equal(refused.status, 429);
  assert.equal(refused.decidedBy, "palisade");
  assert.ok(Number(refused.headers["Retry-After"]) >= 1);
  assert.equal(refused.body?.["error"], "rate_limit_exceeded");
});

test("two hundred at once pass exactly ten", async () => {
  const client = new Palisade((await Server.start()).url, PATIENT);
  const answers = await Promise.all(Array.from({ length: 200 }, () => client.check(signIn(), CLOSED)));
  assert.equal(answers.filter((answer) => answer.allowed).length, 10);
  assert.ok(answers.every((answer) => answer.decidedBy === "palisade"));
});

test("peek counts nothing, and a batch is answered in its order", async () => {
  const client = new Palisade((await Server.start()).url, PATIENT);
  for (let n = 0; n < 3; n += 1) assert.ok((await client.peek(signIn(), CLOSED)).allowed);
  const answers = await client.batch(Array.from({ length: 12 }, () => signIn()), CLOSED);
  assert.deepEqual(
    answers.map((answer) => answer.status),
    [...Array<number>(10).fill(200), 429, 429],
  );
});

test("a wrong field is named and its value is not", async () => {
  const client = new Palisade((await Server.start()).url, PATIENT);
  await assert.rejects(client.check(signIn("not-an-address"), OPEN), (error) => {
    assert.ok(error instanceof BadFacts);
    assert.equal(error.field, "ip");
    assert.ok(!error.message.includes("not-an-address"));
    return true;
  });
});

test("a mistake of the application is no client's fault", async () => {
  const client = new Palisade((await Server.start()).url, PATIENT);
  for (const wrong of [{ ip: "nowhere" }, { cost: 0 }, { layers: "some" as "all" }, { clas: "bulk" }]) {
    await assert.rejects(client.check({ ...signIn(), ...wrong }, OPEN), (error) => {
      assert.ok(error instanceof BadFacts && !(error instanceof BadInput));
      assert.equal(error.field, Object.keys(wrong)[0]);
      return true;
    });
  }
});

test("n11: a class that the policy does not have is refused by its name", async () => {
  const client = new Palisade((await Server.start()).url, PATIENT);
  const misspelt = { ...signIn(), class: "raeds" };
  const refused = (field: string) => (error: unknown) => {
    assert.ok(error instanceof BadFacts && !(error instanceof BadInput));
    assert.equal(error.field, field);
    assert.ok(!error.message.includes("raeds"));
    return true;
  };
  await assert.rejects(client.check(misspelt, OPEN), refused("class"));
  await assert.rejects(client.peek({ org: "acme", class: "raeds" }, OPEN), refused("class"));
  await assert.rejects(client.batch([signIn(), misspelt], OPEN), refused("checks[1].class"));
});

test("a name that is never looked up is within the deadline", async () => {
  const { lookup } = dns;
  const hanging = (() => undefined) as unknown as typeof lookup;
  // A real look-up keeps the process alive, as this timer does.
  const pending = setTimeout(() => undefined, 60_000);
  dns.lookup = hanging;
  try {
    const client = new Palisade("http://palisade.example:8080", { deadlineMs: 300, log: () => undefined });
    const began = performance.now();
    assert.equal((await client.check(signIn(), CLOSED)).mode, "fail_closed");
    const took = performance.now() - began;
    assert.ok(took >= 290 && took < 8_000, `${took}`);
  } finally {
    dns.lookup = lookup;
    clearTimeout(pending);
  }
});

test("a wrong caller token opens nothing", async () => {
  const token = "a-token-that-callers-show-0123456789";
  const { url } = await Server.start('[server]\ncaller_token = "env:CALLER"\n', { CALLER: token });
  assert.ok((await new Palisade(url, { ...PATIENT, token }).check(signIn(), CLOSED)).allowed);
  for (const wrong of [{}, { token: "another" }]) {
    const client = new Palisade(url, { ...PATIENT, ...wrong });
    await assert.rejects(client.check(signIn(), OPEN), Misconfigured);
  }
});

const slow = {
  "never answers": () => undefined,
  "answers a byte at a time": (socket: net.Socket) => {
    const bytes = 'HTTP/1.1 200 OK\r\nContent-Length: 35\r\n\r\n{"decision":"allow","status":200}   ';
    let sent = 0;
    const timer = setInterval(() => (sent < bytes.length ? socket.write(bytes[sent++] ?? "") : 0), 250);
    socket.on("close", () => clearInterval(timer));
    socket.on("error", () => clearInterval(timer));
  },
};

for (const [name, play] of Object.entries(slow)) {
  test(`the deadline bounds the whole question: a server that ${name}`, async () => {
    const port = await listen(net.createServer((socket) => void play(socket.on("error", () => undefined))));
    const client = new Palisade(`http://127.0.0.1:${port}`, { deadlineMs: 300, log: () => undefined });
    const began = performance.now();
    const refused = await client.check(signIn(), CLOSED);
    const took = performance.now() - began;
    assert.ok(took >= 290 && took < 8_000, `${took}`);
    assert.equal(refused.status, 503);
    assert.equal(refused.mode, "fail_closed");
    assert.equal(refused.body?.["code"], "throttling.enforcement_degraded");
    assert.ok(refused.headers["Retry-After"]);
  });
}

test("so many questions at once, and waiting for a turn is within the deadline", async () => {
  const { url, asked } = await stub(() => undefined);
  const client = new Palisade(url, { deadlineMs: 300, connectionsMax: 2, log: () => undefined });
  const began = performance.now();
  const answers = await Promise.all(Array.from({ length: 9 }, () => client.check(signIn(), OPEN)));
  assert.ok(performance.now() - began < 8_000);
  assert.ok(answers.every((answer) => answer.mode === "fail_open"));
  assert.equal(asked.length, 2);
  const server = await Server.start();
  const busy = new Palisade(server.url, { ...PATIENT, connectionsMax: 2 });
  const all = await Promise.all(Array.from({ length: 50 }, () => busy.check(signIn(), CLOSED)));
  assert.equal(all.filter((answer) => answer.allowed).length, 10, "every turn comes");
});

test("closed, open and caps are what they say", async () => {
  const client = new Palisade(await freeUrl(), PATIENT);
  assert.equal((await client.check(signIn(), CLOSED)).status, 503);
  assert.equal((await client.check(signIn(), OPEN)).status, 200);
  const onUnavailable = new Caps({ perKey: 3, total: 5, windowMs: 60_000 });
  const statuses = [];
  for (let n = 0; n < 4; n += 1) statuses.push((await client.check(signIn(), { onUnavailable })).status);
  assert.deepEqual(statuses, [200, 200, 200, 429]);
  const others = [];
  for (let n = 0; n < 5; n += 1) {
    others.push((await client.check(signIn(`203.0.113.${n}`), { onUnavailable })).allowed);
  }
  assert.deepEqual(others, [true, true, false, false, false]);
});

test("there is no choice by default", async () => {
  const client = new Palisade(await freeUrl(), PATIENT);
  // @ts-expect-error the choice is required
  assert.throws(() => client.check(signIn()));
  // @ts-expect-error and is one of three
  await assert.rejects(client.check(signIn(), { onUnavailable: "ajar" }), Misconfigured);
  // @ts-expect-error also for the guard
  assert.throws(() => client.guard({}), Misconfigured);
});

const lies = {
  "another request's": { request_id: "another" },
  "an unknown decision": { decision: "alow" },
  "no status": { status: null },
};

for (const [name, lie] of Object.entries(lies)) {
  test(`what is no clear answer to this question allows nothing: ${name}`, async () => {
    const { url } = await stub((asked, response) => allow(asked, response, lie));
    const refused = await new Palisade(url, PATIENT).check(signIn(), CLOSED);
    assert.equal(refused.status, 503);
    assert.equal(refused.decidedBy, "client");
  });
}

test("a server error and a redirect are no answers", async () => {
  for (const status of [500, 302]) {
    const { url } = await stub((_asked, response) => {
      response.writeHead(status, { Location: "http://127.0.0.1:1/" }).end("{}");
    });
    assert.equal((await new Palisade(url, PATIENT).check(signIn(), CLOSED)).decidedBy, "client");
  }
});

test("palisade going is said once, without naming anybody", async () => {
  const server = await Server.start();
  const said: string[] = [];
  const client = new Palisade(server.url, { ...PATIENT, log: (message) => said.push(message) });
  await client.check(signIn(), CLOSED);
  await server.stop();
  for (let n = 0; n < 3; n += 1) await client.check(signIn(), CLOSED);
  assert.equal(said.length, 1);
  assert.match(said[0] ?? "", /cannot be asked/);
  assert.ok(!said[0]?.includes("203.0.113.7"));
});
