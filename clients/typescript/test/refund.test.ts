/** l_give_back: what a check took is given back once. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { BadFacts, Palisade, Unavailable } from "palisade-client";
import { freeUrl, PATIENT, Server } from "./common.js";

const CLOSED = { onUnavailable: "closed" } as const;
const facts = { ip: "203.0.113.7", method: "POST", path: "/auth/token", receipt: true };

test("a receipt gives back once", async () => {
  const client = new Palisade((await Server.start()).url, PATIENT);
  const taken = [];
  for (let n = 0; n < 10; n += 1) taken.push(await client.check(facts, CLOSED));
  assert.equal((await client.check(facts, CLOSED)).allowed, false);
  const receipt = taken[3]?.receipt ?? "";
  assert.equal(await client.refund(receipt), true);
  assert.equal(await client.refund(receipt), false, "a second time gives nothing");
  assert.equal((await client.check(facts, CLOSED)).allowed, true);
  assert.equal((await client.check(facts, CLOSED)).allowed, false);
});

test("a receipt of somebody else is refused, a refund that nobody hears is thrown", async () => {
  const client = new Palisade((await Server.start()).url, PATIENT);
  await assert.rejects(client.refund("QUJD"), (error) => error instanceof BadFacts && error.field === "receipt");
  await assert.rejects(new Palisade(await freeUrl(), PATIENT).refund("QUJD"), Unavailable);
});

test("t_jobs: a job that was not queued is given back", async () => {
  const quota =
    '[[class]]\nname = "jobs"\n[[limit]]\nname = "jobs-per-org"\nby = ["org"]\nclass = "jobs"\nrate = "10/h"\n';
  const client = new Palisade((await Server.start(quota)).url, PATIENT);
  const job = { org: "acme", token: "t1", class: "jobs" };
  let queued = 0;
  for (let n = 0; n < 19; n += 1) {
    const queue = () => {
      if (n % 2 === 1) throw new RangeError("the queue is full");
      queued += 1;
    };
    const result = client.enqueue(job, CLOSED, queue);
    await (n % 2 === 1 ? assert.rejects(result, RangeError) : result);
  }
  assert.equal(queued, 10);
  await assert.rejects(client.enqueue(job, CLOSED, () => (queued += 1)), { name: "Blocked", status: 429 });
  assert.equal(queued, 10);
});

test("t_jobs: check, peek and batch take jobs beside requests", async () => {
  const quota =
    '[[class]]\nname = "jobs"\n[[limit]]\nname = "jobs-per-org"\nby = ["org"]\nclass = "jobs"\nrate = "10/h"\n';
  const client = new Palisade((await Server.start(quota)).url, PATIENT);
  const job = { org: "acme", token: "t1", class: "jobs", cost: 4 };
  const checked = await client.check(job, CLOSED);
  assert.ok(checked.receipt, "a job's charge can be given back");
  assert.equal((await client.peek(job, CLOSED)).allowed, true);
  const [second, request, third] = await client.batch([job, facts, job], CLOSED);
  assert.equal(second?.allowed, true);
  assert.equal(request?.allowed, true);
  assert.equal(third?.allowed, false, "twelve of ten");
});
