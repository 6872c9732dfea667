/** Logins and one-time codes, against a real server and against one that is away. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { BadInput, Blocked, Caps, Palisade, type Attempt, type AttemptFacts } from "palisade-client";
import { allow, freeUrl, PATIENT, Server, stub } from "./common.js";

const CLOSED = { onUnavailable: "closed" } as const;

function by(account: string, clientId = "d1"): AttemptFacts {
  return { ip: "203.0.113.5", account, username: account, device: { clientId } };
}

async function started() {
  const client = new Palisade((await Server.start()).url, PATIENT);
  return client.guard(CLOSED);
}

test("guessing is stopped and the next account is free", async () => {
  const guard = await started();
  let verified = 0;
  let refused: Blocked | undefined;
  for (let n = 0; n < 5; n += 1) {
    try {
      await guard.login(by("bob"), () => void (verified += 1));
    } catch (error) {
      assert.ok(error instanceof Blocked);
      refused = error;
    }
  }
  assert.equal(verified, 2);
  assert.equal(refused?.answer.decision, "soft_block");
  assert.equal(refused?.status, 429);
  assert.ok(refused?.headers["Retry-After"]);
  const reported = await guard.login(by("ann", "d2"), (attempt) => {
    attempt.success();
    return attempt;
  });
  assert.equal(reported.reported?.allowed, true);
});

const BAD: Record<string, [string, object]> = {
  "a name larger than a whole question": ["username", { username: "n".repeat(70_000) }],
  "half of a surrogate pair": ["username", { username: "ann\ud800" }],
  "a name that is a list": ["username", { username: ["ann"] }],
  "a name that is an object": ["account", { account: { $ne: "" } }],
  "a long device": ["device.client_id", { device: { clientId: "n".repeat(600) } }],
};

test("n3: bad input names the field and not its value", async () => {
  const guard = await started();
  for (const [what, [field, bad]] of Object.entries(BAD)) {
    const attempt = guard.login({ ...by("ann"), ...bad }, () => assert.fail("verified"));
    await assert.rejects(attempt, (error) => {
      assert.ok(error instanceof BadInput, `${what}: ${error}`);
      assert.equal(error.field, field, what);
      assert.equal(error.answer.status, 400);
      assert.equal(error.answer.body?.["field"], field);
      assert.ok(!JSON.stringify(error.answer).includes("nnn") && !error.message.includes("nnn"));
      return true;
    });
  }
  await guard.login({ ...by("ann"), userAgent: "x".repeat(9_000) }, (attempt) => attempt.success());
});

test("otp is stricter than login", async () => {
  const guard = await started();
  await guard.otp(by("bob"), (attempt) => attempt.failure());
  await assert.rejects(guard.otp(by("bob"), () => assert.fail("verified under a block")), Blocked);
});

test("the answer to a failure is held back as long as it says", async () => {
  const guard = await started();
  const began = performance.now();
  const attempt = await guard.login(by("bob"), (each) => each);
  assert.equal(attempt.reported?.delayMs, 250);
  assert.ok(performance.now() - began >= 249);
});

test("the outcome carries the id and the facts of its check", async () => {
  const { url, asked } = await stub(allow0);
  await new Palisade(url, PATIENT).guard(CLOSED).login(by("bob"), (attempt) => attempt.success());
  assert.deepEqual(asked.map((each) => each.path), ["/v1/guard/login/check", "/v1/guard/login/success"]);
  assert.deepEqual(asked[0]?.facts, asked[1]?.facts);
  assert.match(String(asked[0]?.facts["request_id"]), /^[0-9a-f]{32}$/);
  assert.equal(asked[0]?.facts["username"], "bob");
  assert.deepEqual(asked[0]?.facts["device"], { client_id: "d1" });
});

function allow0(asked: Parameters<typeof allow>[0], response: Parameters<typeof allow>[1]): void {
  allow(asked, response);
}

test("whatever ends the block without success is a failure", async () => {
  const ends: ((attempt: Attempt) => unknown)[] = [
    () => undefined,
    (attempt) => attempt.failure(),
    () => {
      throw new RangeError("the database is away");
    },
  ];
  for (const end of ends) {
    const { url, asked } = await stub(allow0);
    await new Palisade(url, PATIENT)
      .guard(CLOSED)
      .login(by("bob"), end)
      .catch((error: unknown) => assert.ok(error instanceof RangeError));
    assert.deepEqual(asked.map((each) => each.path.split("/").at(-1)), ["check", "failure"]);
  }
  const { url, asked } = await stub(allow0);
  await new Palisade(url, PATIENT).guard(CLOSED).login(by("bob"), (attempt) => attempt.abandon());
  assert.equal(asked.length, 1);
});

test("an outcome that was not heard is sent again with its id", async () => {
  const { url, asked } = await stub((each, response, all) => {
    if (all.length === 2) response.destroy();
    else allow(each, response);
  });
  const attempt = await new Palisade(url, PATIENT).guard(CLOSED).login(by("bob"), (each) => each);
  assert.ok(attempt.reported);
  assert.equal(asked.length, 3);
  assert.equal(new Set(asked.map((each) => each.facts["request_id"])).size, 1);
});

test("the second try of a report has no deadline of its own", async () => {
  const { url, asked } = await stub((each, response, all) => {
    if (all.length !== 2) allow(each, response);
  });
  const client = new Palisade(url, { deadlineMs: 1_000, log: () => undefined });
  const attempt = await client.guard(CLOSED).login(by("bob"), (each) => each);
  assert.equal(attempt.reported, null);
  assert.equal(asked.length, 2);
});

test("a lost outcome is said without naming anybody", async () => {
  const said: string[] = [];
  const client = new Palisade(await freeUrl(), { log: (message) => said.push(message) });
  const attempt = await client.guard({ onUnavailable: "open" }).login(by("bob"), (each) => each);
  assert.equal(attempt.check.mode, "fail_open");
  assert.equal(attempt.reported, null);
  assert.ok(said.some((message) => message.includes("could not be reported")));
  assert.ok(!said.join().includes("bob") && !said.join().includes("203.0.113.5"));
});

test("palisade away: closed and caps", async () => {
  const client = new Palisade(await freeUrl(), PATIENT);
  await assert.rejects(
    client.guard(CLOSED).login(by("a"), () => assert.fail("verified unasked")),
    { name: "Blocked", status: 503 },
  );
  const guard = client.guard({ onUnavailable: new Caps({ perKey: 3, total: 100, windowMs: 60_000 }) });
  let verified = 0;
  for (let n = 0; n < 10; n += 1) {
    await guard.login(by("a"), () => void (verified += 1)).catch((error: Blocked) => {
      assert.equal(error.status, 429);
    });
  }
  assert.equal(verified, 3);
});

test("g_pending: guesses at once gain nothing", async () => {
  const guard = await started();
  let verified = 0;
  let answered = 0;
  let release: () => void = () => undefined;
  const gate = new Promise<void>((resolve) => (release = resolve));
  const arrive = () => {
    answered += 1;
    if (answered === 50) release();
  };
  const guess = () =>
    guard
      .login(by("bob"), async () => {
        verified += 1;
        arrive();
        await gate;
      })
      .catch((error: unknown) => {
        assert.ok(error instanceof Blocked);
        arrive();
      });
  await Promise.all(Array.from({ length: 50 }, guess));
  assert.equal(verified, 2, "as many as one after the other");
});

test("sessions are issued and revoked", async () => {
  const guard = await started();
  const sessionId = await guard.issueSession("ann");
  await guard.issueSession("ann");
  const facts = { ip: "203.0.113.5", account: "ann", username: "ann", device: { sessionId } };
  await guard.login(facts, (attempt) => attempt.success());
  assert.equal(await guard.revokeSessions("ann", sessionId), 1);
  assert.equal(await guard.revokeSessions("ann"), 1);
});

test("a check and its outcome in two requests", async () => {
  const guard = await started();
  const { requestId, allowed } = await guard.check("login", by("ann"));
  assert.ok(allowed);
  const reported = await guard.report("login", "success", { ...by("ann"), requestId });
  assert.equal(reported?.requestId, requestId);
});

test("a code is sent once in a while until it is entered", async () => {
  const guard = await started();
  const facts = (destination: string) =>
    ({ ip: "203.0.113.5", account: "carla", destination, channel: "sms" }) as const;
  assert.equal((await guard.send(facts("+34600123456"))).allowed, true);
  const again = await guard.send(facts("0034 600 12 34 56"));
  assert.equal(again.decision, "soft_block");
  assert.equal(again.rule, "S-PAUSE");
});
