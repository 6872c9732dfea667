/**
 * A test double: a client that decides by itself, for tests of your application.
 *
 * Everything but the network is the real client: facts, answers, the guard, `onUnavailable`. It
 * allows everything until it is told otherwise, and remembers what it was asked.
 */

import type { Decision } from "./answer.js";
import { Palisade } from "./client.js";
import { FakeReservations, type Facts } from "./fake.js";

/**
 * What is asked: a request, a job, a step of an attempt, a code to send, a call of a heavy
 * endpoint, a step of a reservation.
 */
export type Op =
  | ("request" | "job.enqueue" | "otp.send" | "api.hit" | "reserve" | "extend" | "settle" | "release")
  | `${"login" | "otp"}.${"check" | "failure" | "success"}`;

/** One question, with its facts as they are sent. */
export interface Asked {
  readonly op: Op;
  readonly facts: Facts;
}

/** Which questions are refused, and how. */
export interface Refusal {
  /** Only questions whose facts have these values, named as on the wire. */
  facts?: Facts;
  /** So many of them pass first; none by default. */
  after?: number;
  decision?: Exclude<Decision, "allow">;
  /** Seconds to wait; 60 by default. */
  retryAfter?: number;
}

type Step = "reserve" | "extend" | "settle" | "release";

class Script {
  readonly asked: Asked[] = [];
  readonly refusals: { op: Op; refusal: Refusal; left: number }[] = [];
  readonly reservations = new FakeReservations();
  isReachable = true;

  readonly fetch: typeof fetch = async (url, init) => {
    if (!this.isReachable) throw new TypeError("the test double has gone away");
    const path = new URL(String(url)).pathname;
    const facts = JSON.parse(String(init?.body)) as Facts;
    return Response.json(this.#value(path, facts));
  };

  #value(path: string, facts: Facts): unknown {
    if (path === "/v1/refund") return { refunded: true };
    if (path === "/v1/guard/sessions") return { session_id: `session-${facts["account"]}`, revoked: 1 };
    const step = /^\/v1\/(reserve|extend|settle|release)$/.exec(path)?.[1];
    if (step !== undefined) return this.#followed(step as Step, facts);
    if (path !== "/v1/batch") return this.#decided(path, facts);
    return { answers: (facts["checks"] as Facts[]).map((each) => this.#decided("/v1/check", each)) };
  }

  #followed(step: Step, facts: Facts): Facts {
    if (step === "settle" || step === "release") {
      this.asked.push({ op: step, facts });
      return this.reservations.settle(facts);
    }
    const answer = this.#answer(step, facts);
    if (step === "extend") return this.reservations.extend(facts, answer);
    return answer["decision"] === "allow" ? { ...answer, ...this.reservations.take(facts) } : answer;
  }

  #decided(path: string, facts: Facts): Facts {
    const guard = /^\/v1\/guard\/(\w+)\/(\w+)$/.exec(path);
    return this.#answer((guard === null ? (facts["op"] ?? "request") : `${guard[1]}.${guard[2]}`) as Op, facts);
  }

  #answer(op: Op, facts: Facts): Facts {
    this.asked.push({ op, facts });
    // Every refusal counts the question, the first one that refuses it answers.
    const [refusing] = this.refusals.filter((each) => takes(each, op, facts));
    const hasReceipt = op === "job.enqueue" || facts["receipt"] === true;
    return {
      decision: "allow",
      status: 200,
      request_id: facts["request_id"],
      ...(hasReceipt ? { receipt: `receipt-${this.asked.length}` } : {}),
      ...(refusing === undefined ? {} : refused(refusing.refusal, facts["request_id"])),
    };
  }
}

function takes(each: Script["refusals"][number], op: Op, facts: Facts): boolean {
  const wanted = Object.entries(each.refusal.facts ?? {});
  if (each.op !== op || wanted.some(([name, value]) => facts[name] !== value)) return false;
  each.left -= 1;
  return each.left < 0;
}

function refused({ decision = "deny", retryAfter = 60 }: Refusal, requestId: unknown): Facts {
  const error = "rate_limit_exceeded";
  const message = "Too many requests. Please try again later.";
  return {
    decision,
    status: 429,
    retry_after: retryAfter,
    error,
    headers: { "Retry-After": String(retryAfter) },
    body: { error, message, retry_after: retryAfter, request_id: requestId },
  };
}

/** A `Palisade` without a server. */
export class FakePalisade extends Palisade {
  readonly #script: Script;

  constructor() {
    const script = new Script();
    super("http://palisade.test", { fetch: script.fetch, log: () => undefined });
    this.#script = script;
  }

  /** Every question, in its order. */
  get asked(): readonly Asked[] {
    return this.#script.asked;
  }

  /** What was asked, without the facts. */
  get ops(): readonly Op[] {
    return this.#script.asked.map(({ op }) => op);
  }

  /** From now on refuses questions of this kind, with 429. */
  refuse(op: Exclude<Op, "settle" | "release">, refusal: Refusal = {}): void {
    this.#script.refusals.push({ op, refusal, left: refusal.after ?? 0 });
  }

  /** From now on what is reserved so far has ended: extensions say so. */
  expire(): void {
    this.#script.reservations.expire();
  }

  /** From now on nobody answers: `onUnavailable` decides. */
  goAway(): void {
    this.#script.isReachable = false;
  }

  /** From now on questions are answered again. */
  comeBack(): void {
    this.#script.isReachable = true;
  }
}
