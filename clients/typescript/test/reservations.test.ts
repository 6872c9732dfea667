/** Reserve, extend, settle, release: against a real server and against stubs of one. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { BadFacts, BadInput, Blocked, Caps, Palisade, Reservation, Unavailable } from "palisade-client";
import type { RequestFacts, Terms } from "palisade-client";
import { freeUrl, PATIENT, Server, stub } from "./common.js";

const POLICY = `
[policy]
defaults = false

[[limit]]
name = "requests-per-org"
by = ["org"]
rate = "60/h"

[[limit]]
name = "tokens-per-org"
by = ["org"]
rate = "10_000/h"
unit = "tokens"

[[limit]]
name = "calls-in-progress"
by = ["org"]
concurrency = 2
hold = "2s"
`;
const costs = { requests: 1, tokens: 4000 };
const CLOSED = { onUnavailable: "closed" } as const;
const OPEN = { onUnavailable: "open" } as const;
const chat = (org = "acme"): RequestFacts => ({ ip: "203.0.113.5", method: "POST", path: "/v1/chat", org });
const sleep = (ms: number) => new Promise((resume) => setTimeout(resume, ms));

async function started(more = ""): Promise<Palisade> {
  return new Palisade((await Server.start(POLICY + more)).url, PATIENT);
}

/** Tokens that are left: what a reservation of all that is left takes. */
async function left(client: Palisade): Promise<number | undefined> {
  const { held } = await client.reserve(chat(), { costs: { tokens: 10_000 }, atMost: true, ...CLOSED });
  await client.release(held?.reservation ?? "");
  return held?.reserved["tokens"];
}

async function eventually(what: () => boolean | Promise<boolean>): Promise<void> {
  const end = performance.now() + 30_000;
  while (!(await what())) {
    assert.ok(performance.now() < end);
    await sleep(20);
  }
}

for (const [said, remain] of [
  [{ tokens: 812 }, 9188],
  [{ tokens: 6000 }, 4000],
  [{}, 6000],
  [{ tokens: null }, 6000],
] as const) {
  test(`work is settled by what it said: ${JSON.stringify(said)}`, async () => {
    const client = await started();
    const r = await client.reserve(chat(), { costs, hold: "60s", ...CLOSED }, async (r) => {
      assert.deepEqual(r.reserved, costs);
      assert.ok(!r.expired && r.answer.allowed && r.answer.headers["X-RateLimit-Limit"]);
      r.used(said);
      return r;
    });
    const tokens = 10_000 - remain;
    assert.deepEqual(r.settled, {
      recorded: true,
      late: false,
      used: { requests: 1, tokens },
      reserved: costs,
      over: tokens === 6000 ? { tokens: 2000 } : {},
    });
    assert.equal(await left(client), remain);
  });
}

test("only a release gives everything back, with an exception and without", async () => {
  for (const fails of [false, true]) {
    const client = await started();
    for (const [says, remain] of [["release", 10_000], ["nothing", 6000]] as const) {
      const worked = client.reserve(chat(), { costs, ...CLOSED }, (r) => {
        if (says === "release") {
          r.used({ tokens: 7 });
          r.release();
        }
        if (fails) throw new RangeError("failed");
      });
      await (fails ? assert.rejects(worked, RangeError) : worked);
      assert.equal(await left(client), remain);
    }
  }
});

test("a denied reservation is a refusal ready to send", async () => {
  const client = await started();
  await client.reserve(chat(), CLOSED, () =>
    client.reserve(chat(), CLOSED, async () => {
      await assert.rejects(
        client.reserve(chat(), OPEN, () => assert.fail("worked")),
        (error) => {
          assert.ok(error instanceof Blocked);
          assert.equal(error.status, 429);
          assert.ok(Number(error.headers["Retry-After"]) >= 1);
          assert.equal(error.answer.body?.["error"], "rate_limit_exceeded");
          assert.equal(error.answer.decidedBy, "palisade");
          return true;
        },
      );
      const only = await client.reserve(chat(), CLOSED);
      assert.equal(only.held, null);
      assert.equal(only.answer.status, 429);
    }),
  );
  assert.ok((await client.reserve(chat(), CLOSED)).held, "both are free again");
});

test("b_slot: a holder extends by itself as long as it works", async () => {
  const client = await started();
  const r = await client.reserve(chat(), { hold: "2s", ...CLOSED }, async (r) => {
    await sleep(3000);
    assert.equal(r.expired, false);
    return r;
  });
  assert.equal(r.settled?.late, false);
});

test("b_slot: max_hold ends what outlives it", async () => {
  const client = await started('[reservations]\nmax_hold = "2s"\n');
  const r = await client.reserve(chat(), { hold: "1s", ...CLOSED }, async (r) => {
    const began = performance.now();
    await eventually(() => r.expired);
    assert.ok(performance.now() - began > 1000, "it was extended first");
    await eventually(async () => (await r.extend()).expired);
    return r;
  });
  assert.equal(r.settled?.late, false, "a settle still corrects it");
});

test("more cost is decided like a check", async () => {
  const client = await started();
  const r = await client.reserve(chat(), { costs, ...CLOSED }, async (r) => {
    assert.equal((await r.extend({ costs: { tokens: 1000 } })).allowed, true);
    const refused = await r.extend({ costs: { tokens: 9000 } });
    assert.ok(!refused.allowed && !refused.expired && refused.retryAfter !== null);
    assert.equal(refused.error, "rate_limit_exceeded");
    assert.equal(r.reserved["tokens"], 5000);
    return r;
  });
  assert.equal(r.settled?.used["tokens"], 5000, "used as reserved, the more too");
  assert.equal(await left(client), 5000);
});

test("b_once: the four calls and a second settle", async () => {
  const client = await started();
  const { held } = await client.reserve(chat(), { costs, hold: "1min", ...CLOSED });
  const token = held?.reservation ?? "";
  assert.equal(held?.expiresIn, 2);
  assert.ok(held.expiresAt);
  const extended = await client.extend(token, { costs: { tokens: 500 }, hold: "2s" });
  assert.equal(extended.held?.reserved["tokens"], 4500);
  const first = await client.settle(token, { tokens: 5000 });
  assert.deepEqual(first.over, { tokens: 500 });
  assert.deepEqual(await client.settle(token, { tokens: 1 }), first);
  assert.deepEqual(await client.release(token), first);
  const after = await client.extend(token);
  assert.equal(after.allowed, false);
  assert.deepEqual(after.settled?.used, first.used);
  assert.equal(await left(client), 5000);
});

test("a place that was lost is told", async () => {
  const tokens: string[] = [];
  const client = new Palisade((await Server.start(POLICY)).url, {
    ...PATIENT,
    fetch: async (url, init) => {
      const response = await fetch(url, init);
      const value = (await response.clone().json()) as { reservation?: string };
      if (value.reservation !== undefined) tokens.push(value.reservation);
      return response;
    },
  });
  await client.reserve(chat(), { hold: "2s", ...CLOSED }, async (r) => {
    await client.settle(tokens[0] ?? "", { requests: 1 });
    await eventually(() => r.expired);
    assert.equal((await r.extend()).allowed, false);
  });
});

test("one request reserves twice", async () => {
  // The server answers a repeated id with the reservation that it gave before.
  const client = await started();
  const facts = { ...chat(), requestId: "the-request" };
  for (let n = 0; n < 2; n += 1) await client.reserve(facts, { costs, ...CLOSED }, () => undefined);
  assert.equal(await left(client), 2000);
});

test("at most grants what is left", async () => {
  const client = await started();
  await client.reserve(chat(), { costs: { tokens: 10_000 }, atMost: true, ...CLOSED }, (r) => r.used({ tokens: 9900 }));
  await client.reserve(chat(), { costs: { tokens: 4000 }, atMost: true, ...CLOSED }, (r) => {
    assert.deepEqual(r.reserved, { tokens: 100 });
  });
});

test("bad input names the field", async () => {
  const client = await started();
  const named = (field: string) => (error: unknown) => {
    assert.ok(error instanceof BadFacts && !(error instanceof BadInput));
    assert.equal(error.field, field);
    return true;
  };
  const wrongs: [string, Partial<RequestFacts>, Terms][] = [
    ["costs", {}, { costs: { tikens: 1 } }],
    ["costs", {}, { costs: {} }],
    ["costs.tokens", {}, { costs: { tokens: -1 } }],
    ["hold", {}, { hold: "2 s" }],
    ["hold", {}, { hold: "2h" }],
    ["ip", { ip: "nowhere" }, {}],
    ["receipt", { receipt: true }, {}],
  ];
  for (const [field, facts, terms] of wrongs) {
    const asked = [{ ...chat(), ...facts }, { ...terms, ...OPEN }] as const;
    await assert.rejects(client.reserve(...asked), named(field));
    await assert.rejects(client.reserve(...asked, () => assert.fail("worked")), named(field));
  }
  const { held } = await client.reserve(chat(), { costs, ...CLOSED });
  const token = held?.reservation ?? "";
  await assert.rejects(client.release("QUJD"), named("reservation"));
  await assert.rejects(client.extend(token, { hold: "0s" }), named("hold"));
  await assert.rejects(client.settle(token, { bytes: 1 }), named("costs"));
  await assert.rejects(client.reserve(chat("n".repeat(600)), OPEN), (error) => {
    assert.ok(error instanceof BadInput && error.field === "org" && error.answer.status === 400);
    return true;
  });
});

test("a wrong word about what was used is told at once", async () => {
  const client = await started();
  const r = await client.reserve(chat(), { costs, ...CLOSED }, (r) => {
    for (const wrong of [{ tikens: 1 }, { toString: 1 }, { tokens: -1 }, { tokens: 1.5 }, { tokens: Number.NaN }]) {
      assert.throws(() => r.used(wrong as Record<string, number>), { name: "BadFacts", field: "costs" });
    }
    r.used({ tokens: 812 });
    r.used({ requests: 1 });
    return r;
  });
  assert.deepEqual(r.settled?.used, { requests: 1, tokens: 812 });
});

test("on_unavailable decides about reservations too", async () => {
  const client = new Palisade(await freeUrl(), PATIENT);
  await assert.rejects(client.reserve(chat(), { costs, ...CLOSED }, () => assert.fail("worked")), {
    name: "Blocked",
    status: 503,
  });
  const r = await client.reserve(chat(), { costs, ...OPEN }, async (r) => {
    assert.deepEqual(r.reserved, costs);
    assert.ok((await r.extend({ costs: { tokens: 1 } })).allowed);
    r.used({ tokens: 812 });
    return r;
  });
  assert.ok(r.settled === null && !r.expired && r.answer.decidedBy === "client");
  const onUnavailable = new Caps({ perKey: 1, total: 10, windowMs: 60_000 });
  await client.reserve(chat(), { onUnavailable }, () => undefined);
  await assert.rejects(client.reserve(chat(), { onUnavailable }, () => assert.fail("worked")), Blocked);
  await assert.rejects(client.extend("token"), Unavailable);
  await assert.rejects(client.release("token"), Unavailable);
  // @ts-expect-error the choice is one of three
  await assert.rejects(client.reserve(chat(), { onUnavailable: "ajar" }), { name: "Misconfigured" });
});

test("b_fail: a settle never fails the work", async () => {
  const server = await Server.start(POLICY);
  const said: string[] = [];
  const client = new Palisade(server.url, { deadlineMs: 5000, log: (message) => said.push(message) });
  const r = await client.reserve(chat(), { hold: "2s", ...CLOSED }, async (r) => {
    await server.stop();
    assert.equal((await r.extend()).allowed, false, "closed refuses more");
    return r;
  });
  assert.equal(r.settled, null);
  assert.match(said.join("\n"), /a reservation could not be settled \(cannot be reached/);
  assert.ok(!said.join().includes("acme"));
});

const held = (facts: Record<string, unknown>, seconds = 60) => ({
  ...{ decision: "allow", status: 200, request_id: facts["request_id"] },
  ...{ reservation: "sealed", expires_in: seconds, reserved: { requests: 1 } },
});

test("a settle is tried twice within one deadline", async () => {
  const { url, asked } = await stub(({ path, facts }, response, all) => {
    if (path === "/v1/reserve") return void response.end(JSON.stringify(held(facts)));
    if (all.length < 3) return void response.writeHead(503).end("{}");
    const settled = { recorded: false, late: false, used: {}, reserved: {}, over: {} };
    response.writeHead(202).end(JSON.stringify({ request_id: facts["request_id"], ...settled }));
  });
  const r = await new Palisade(url, PATIENT).reserve(chat(), CLOSED, (r) => r);
  assert.equal(r.settled?.recorded, false, "202: the server tries again by itself");
  assert.deepEqual(asked.map(({ path }) => path), ["/v1/reserve", "/v1/settle", "/v1/settle"]);
  assert.deepEqual(asked[1]?.facts, asked[2]?.facts);
});

test("a settle that nobody answers ends with the deadline", async () => {
  const { url } = await stub(({ path, facts }, response) => {
    if (path === "/v1/reserve") response.end(JSON.stringify(held(facts)));
  });
  const said: string[] = [];
  const client = new Palisade(url, { deadlineMs: 1000, log: (message) => said.push(message) });
  let began = 0;
  const r = await client.reserve(chat(), CLOSED, (r) => {
    began = performance.now();
    return r;
  });
  const took = performance.now() - began;
  assert.ok(r.settled === null && took >= 990 && took < 8000, `${took}`);
  assert.match(said.join("\n"), /could not be settled \(no answer before the deadline\)/);
});

for (const status of [400, 403]) {
  test(`a settle or an extension that is refused is logged and not thrown: ${status}`, async () => {
    const { url, asked } = await stub(({ path, facts }, response) => {
      if (path === "/v1/reserve") return void response.end(JSON.stringify(held(facts, 1)));
      response.writeHead(status).end(JSON.stringify({ detail: "no", field: "x" }));
    });
    const said: string[] = [];
    const client = new Palisade(url, { ...PATIENT, log: (message) => said.push(message) });
    const r = await client.reserve(chat(), CLOSED, async (r) => {
      await eventually(() => r.expired);
      return r;
    });
    assert.ok(r instanceof Reservation && r.settled === null);
    const lines = ["extended", "settled"].map((what) => `a reservation could not be ${what} (no)`);
    assert.deepEqual(said, lines);
    assert.equal(asked.length, 3, "a mistake is not repeated");
  });
}
