import { createHmac, randomBytes } from "node:crypto";

import { clientPrefix } from "./address.js";
import { local, type Answer } from "./answer.js";
import type { Question } from "./facts.js";
import { Misconfigured } from "./errors.js";

const CLOSED_RETRY_SECONDS = 5;

export interface CapsOptions {
  /** Most for each address, account, organisation, user or token in any window. */
  perKey: number;
  /** Most for all together in any window. */
  total: number;
  windowMs: number;
  /** With so many keys in use a new one is refused. */
  keysMax?: number;
  now?: () => number;
}

/**
 * Bounds that hold in this process while Palisade cannot be asked. Keys are digests, and
 * their number is bounded.
 */
export class Caps {
  readonly #options: Required<CapsOptions>;
  readonly #secret = randomBytes(32);
  readonly #total: number[] = [];
  /** In the order of last use: a Map keeps it. */
  readonly #keys = new Map<string, number[]>();

  constructor(options: CapsOptions) {
    this.#options = { keysMax: 10_000, now: () => performance.now(), ...options };
    const { perKey, total, windowMs, keysMax } = this.#options;
    if (![perKey, total, windowMs, keysMax].every((figure) => Number.isFinite(figure) && figure > 0)) {
      throw new Misconfigured("`perKey`, `total`, `windowMs` and `keysMax` must be positive");
    }
  }

  /** Counts one on every subject, or on none: then the milliseconds to wait. */
  take(subjects: readonly string[]): number | undefined {
    const { perKey, total, windowMs, keysMax } = this.#options;
    const now = this.#options.now();
    this.#forget(now);
    const keys = subjects.map((subject) => this.#digest(subject));
    const fresh = keys.filter((key) => !this.#keys.has(key)).length;
    if (this.#keys.size + fresh > keysMax) return windowMs;
    const logs = keys.map((key) => this.#keys.get(key) ?? []);
    const waits = logs.map((log) => this.#wait(log, perKey, now));
    const wait = Math.max(this.#wait(this.#total, total, now), ...waits);
    if (wait > 0) return wait;
    keep(this.#total, now, total);
    keys.forEach((key, index) => {
      const log = logs[index] ?? [];
      keep(log, now, perKey);
      this.#keys.delete(key);
      this.#keys.set(key, log);
    });
    return undefined;
  }

  #wait(log: readonly number[], most: number, now: number): number {
    const oldest = log.length >= most ? log[0] : undefined;
    return oldest === undefined ? 0 : Math.max(0, oldest + this.#options.windowMs - now);
  }

  #forget(now: number): void {
    for (const [key, log] of this.#keys) {
      if ((log.at(-1) ?? 0) + this.#options.windowMs > now) return;
      this.#keys.delete(key);
    }
  }

  #digest(subject: string): string {
    const [kind, value = ""] = subject.split(/ (.*)/s);
    const text = kind === "ip" ? `ip ${clientPrefix(value)}` : subject;
    return createHmac("sha256", this.#secret).update(text).digest("base64");
  }
}

/** A log holds as many times as the limit allows: the oldest of a full one decides. */
function keep(log: number[], now: number, most: number): void {
  log.push(now);
  if (log.length > most) log.shift();
}

/** `closed`: refuse with 503. `open`: let through. `Caps`: let through up to these bounds. */
export type OnUnavailable = "closed" | "open" | Caps;

/** Refuses anything that is not one of the three choices. */
export function requireChoice(choice: OnUnavailable): OnUnavailable {
  if (choice === "closed" || choice === "open" || choice instanceof Caps) return choice;
  throw new Misconfigured('`onUnavailable` must be "closed", "open" or a `Caps`');
}

/** The answer that the choice gives. */
export function decide(choice: OnUnavailable, question: Question): Answer {
  if (choice === "closed") return refused(question, "fail_closed", CLOSED_RETRY_SECONDS);
  if (choice === "open") return allowed(question, "fail_open");
  const wait = choice.take(question.subjects);
  return wait === undefined
    ? allowed(question, "degraded")
    : refused(question, "degraded", Math.max(1, Math.ceil(wait / 1000)));
}

const headers = { "X-RateLimit-Status": "degraded" };

function allowed(question: Question, mode: "fail_open" | "degraded"): Answer {
  const nothing = { error: null, message: "", code: "", retryAfter: null };
  return local(question.requestId, { decision: "allow", mode, status: 200, headers, ...nothing });
}

function refused(question: Question, mode: "fail_closed" | "degraded", retryAfter: number): Answer {
  const closed = mode === "fail_closed";
  return local(question.requestId, {
    decision: "deny",
    mode,
    status: closed ? 503 : 429,
    error: closed ? "service_unavailable" : "rate_limit_exceeded",
    message: closed
      ? "The request cannot be checked now. Please try again later."
      : "Too many requests. Please try again later.",
    code: "throttling.enforcement_degraded",
    retryAfter,
    headers,
  });
}
