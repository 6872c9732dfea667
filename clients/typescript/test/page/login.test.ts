import assert from "node:assert/strict";
import { test } from "node:test";
import { Blocked, type Palisade } from "palisade-client";
import { FakePalisade } from "palisade-client/testing";

// A part of your application.
function logIn(palisade: Palisade, username: string, password: string): Promise<boolean> {
  const facts = { ip: "203.0.113.5", account: username.toLowerCase(), username };
  return palisade.guard({ onUnavailable: "closed" }).login(facts, (attempt) => {
    if (password === "correct horse") attempt.success();
    return attempt.outcome === "success";
  });
}

test("a wrong password is reported", async () => {
  const palisade = new FakePalisade();
  assert.equal(await logIn(palisade, "Ann", "guess"), false);
  assert.deepEqual(palisade.ops, ["login.check", "login.failure"]);
  assert.equal(palisade.asked[0]?.facts["account"], "ann");
});

test("nothing is verified under a block", async () => {
  const palisade = new FakePalisade();
  palisade.refuse("login.check", { facts: { account: "ann" }, retryAfter: 30 });
  await assert.rejects(logIn(palisade, "Ann", "correct horse"), Blocked);
});

test("nothing is verified while palisade is away", async () => {
  const palisade = new FakePalisade();
  palisade.goAway();
  await assert.rejects(logIn(palisade, "Ann", "correct horse"), Blocked);
});
