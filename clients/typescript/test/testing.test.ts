/** The test double answers as a server would, as far as an application's tests need it. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Blocked, type AttemptFacts, type Palisade } from "palisade-client";
import { FakePalisade } from "palisade-client/testing";

const CLOSED = { onUnavailable: "closed" } as const;
const by = (account: string): AttemptFacts => ({ ip: "203.0.113.5", account, username: account });
const page = { ip: "203.0.113.5", method: "GET", path: "/" };

test("n11: a double allows and remembers until it is told otherwise", async () => {
  const fake = new FakePalisade();
  const client: Palisade = fake;
  const guard = client.guard(CLOSED);
  await guard.login(by("ann"), (attempt) => attempt.success());
  await guard.otp(by("ann"), () => undefined);
  assert.equal((await client.check({ ...page, org: "acme" }, CLOSED)).decidedBy, "palisade");
  assert.equal((await client.batch([page, page], CLOSED)).length, 2);
  assert.ok((await client.apiHit({ ip: "203.0.113.5" }, CLOSED)).allowed);
  const login = ["login.check", "login.success", "otp.check", "otp.failure"];
  assert.deepEqual(fake.ops, [...login, "request", "request", "request", "api.hit"]);
  assert.equal(fake.asked[4]?.facts["org"], "acme");
  assert.ok(await guard.issueSession("ann"));
});

test("a double refuses what it is told to", async () => {
  const fake = new FakePalisade();
  fake.refuse("login.check", { facts: { account: "bob" }, decision: "soft_block", retryAfter: 30, after: 1 });
  const guard = fake.guard(CLOSED);
  await guard.login(by("bob"), () => undefined);
  await assert.rejects(guard.login(by("bob"), () => assert.fail("verified")), (error) => {
    assert.ok(error instanceof Blocked);
    assert.equal(error.answer.decision, "soft_block");
    assert.equal(error.headers["Retry-After"], "30");
    return true;
  });
  await guard.login(by("ann"), () => undefined);
  fake.refuse("job.enqueue", { facts: { org: "acme" } });
  await assert.rejects(fake.enqueue({ org: "acme" }, CLOSED, () => assert.fail("queued")), Blocked);
  const { receipt } = await fake.check({ org: "other" }, CLOSED);
  assert.ok(receipt !== null && (await fake.refund(receipt)));
});

test("a double that has gone away leaves it to the choice", async () => {
  const fake = new FakePalisade();
  fake.goAway();
  assert.equal((await fake.check(page, CLOSED)).status, 503);
  assert.equal((await fake.check(page, { onUnavailable: "open" })).mode, "fail_open");
  fake.comeBack();
  assert.equal((await fake.check(page, CLOSED)).decidedBy, "palisade");
});

const chat = { ip: "203.0.113.5", method: "POST", path: "/v1/chat", org: "acme" };
const costs = { requests: 1, tokens: 4000 };

test("a double reserves, extends and settles", async () => {
  const fake = new FakePalisade();
  const r = await fake.reserve(chat, { costs, hold: "90s", ...CLOSED }, async (r) => {
    assert.ok((await r.extend({ costs: { tokens: 500 } })).allowed && r.reserved["tokens"] === 4500);
    r.used({ tokens: 5000 });
    return r;
  });
  assert.deepEqual(r.settled?.over, { tokens: 500 });
  assert.deepEqual(fake.ops, ["reserve", "extend", "settle"]);
  assert.deepEqual(fake.asked[0]?.facts["costs"], costs);
  assert.equal(fake.asked[0]?.facts["hold"], "90s");
  assert.deepEqual(fake.asked[2]?.facts["costs"], { tokens: 5000 });
  const released = await fake.reserve(chat, CLOSED, (r) => {
    r.release();
    return r;
  });
  assert.deepEqual([fake.ops.at(-1), released.settled?.used], ["release", { requests: 0 }]);
  const { held } = await fake.reserve(chat, { hold: "2min", ...CLOSED });
  assert.equal(held?.expiresIn, 120);
  const first = await fake.settle(held.reservation, { requests: 1 });
  assert.deepEqual(await fake.release(held.reservation), first);
  assert.deepEqual((await fake.extend(held.reservation)).settled, first);
});

test("a double refuses reservations and loses their places", async () => {
  const fake = new FakePalisade();
  fake.refuse("extend", { retryAfter: 7 });
  await fake.reserve(chat, CLOSED, async (r) => {
    const refused = await r.extend({ costs: { requests: 1 } });
    assert.ok(!refused.allowed && refused.retryAfter === 7 && !r.expired);
    fake.expire();
    assert.ok((await r.extend()).expired && r.expired);
  });
  fake.refuse("reserve", { facts: { org: "acme" }, retryAfter: 30 });
  await assert.rejects(fake.reserve(chat, CLOSED, () => assert.fail("worked")), Blocked);
  fake.goAway();
  await fake.reserve(chat, { onUnavailable: "open" }, () => undefined);
  // @ts-expect-error a settle is never refused
  assert.doesNotThrow(() => fake.refuse("settle"));
  assert.deepEqual(fake.ops, ["reserve", "extend", "extend", "settle", "reserve"]);
});
