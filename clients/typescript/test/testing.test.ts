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
