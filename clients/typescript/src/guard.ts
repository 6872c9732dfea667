import { isObject, orThrow, parse, text, type Answer } from "./answer.js";
import type { Palisade } from "./client.js";
import { Unavailable } from "./errors.js";
import { ofAttempt, ofSend, type AttemptFacts, type Question, type SendFacts } from "./facts.js";
import type { OnUnavailable } from "./unavailable.js";

export type Flow = "login" | "otp";
export type Outcome = "failure" | "success";

/** What a challenge frees: `request` is for limits that ask for one. */
export type ChallengeFlow = "login" | "otp" | "api" | "request";

/** The client of a challenge. `account` is required for `login` and `otp`. */
export interface ChallengedFacts {
  ip: string;
  account?: string | undefined;
}

/** A challenge for one client. Nothing is remembered of it. */
export interface Challenge {
  readonly kind: string;
  readonly parameters: Readonly<Record<string, unknown>>;
  readonly expiresAt: string | null;
}

/** The result of a solution. */
export interface Verified {
  readonly passed: boolean;
  readonly token: string | null;
  /** `wrong`, `late`, `used`, `foreign` or `unavailable`. */
  readonly reason: string | null;
}

function clientOf({ ip, account }: ChallengedFacts): Record<string, unknown> {
  return account === undefined ? { ip } : { ip, account };
}

const DELAY_MS_MAX = 10_000;

/** An attempt that may be verified now. */
export class Attempt {
  /** What the report was answered, after the block; `null` if it was lost. */
  reported: Answer | null = null;
  #outcome: Outcome | "abandoned" = "failure";

  constructor(
    /** What the check answered. */
    readonly check: Answer,
  ) {}

  /** The id that joins the check and its outcome. */
  get requestId(): string {
    return this.check.requestId;
  }

  get outcome(): Outcome | "abandoned" {
    return this.#outcome;
  }

  /** The credential was right. */
  success(): void {
    this.#outcome = "success";
  }

  /** The credential was wrong. */
  failure(): void {
    this.#outcome = "failure";
  }

  /** Nothing was verified. The attempt weighs until it runs out (G-PENDING). */
  abandon(): void {
    this.#outcome = "abandoned";
  }
}

/**
 * Logins and one-time codes: asks before the credential is verified, says how it went.
 *
 * Only `success()` is a success. Whatever else ends `verify`, a return or an exception, is
 * reported as a failure: otherwise an attacker would look for the way out that is not
 * counted. `abandon()` says that nothing was verified.
 */
export class Guard {
  readonly #palisade: Palisade;
  readonly #choice: OnUnavailable;

  constructor(palisade: Palisade, choice: OnUnavailable) {
    this.#palisade = palisade;
    this.#choice = choice;
  }

  /** A password. Throws `Blocked` if it may not be verified now. */
  login<T>(facts: AttemptFacts, verify: (attempt: Attempt) => Promise<T> | T): Promise<T> {
    return this.#attempt("login", facts, verify);
  }

  /** A one-time code. Throws `Blocked` if it may not be verified now. */
  otp<T>(facts: AttemptFacts, verify: (attempt: Attempt) => Promise<T> | T): Promise<T> {
    return this.#attempt("otp", facts, verify);
  }

  async #attempt<T>(
    flow: Flow,
    facts: AttemptFacts,
    verify: (attempt: Attempt) => Promise<T> | T,
  ): Promise<T> {
    const question = ofAttempt(facts);
    const attempt = new Attempt(orThrow(await this.#enter(flow, question)));
    try {
      return await verify(attempt);
    } finally {
      if (attempt.outcome !== "abandoned") {
        attempt.reported = await this.#leave(flow, attempt.outcome, question);
      }
    }
  }

  /**
   * Only the check, for a host that spreads an attempt over two requests. Its answer's
   * `requestId` belongs into the facts of `report`.
   */
  check(flow: Flow, facts: AttemptFacts): Promise<Answer> {
    return this.#enter(flow, ofAttempt(facts));
  }

  /** Whether a code may be sent. It is counted as sent if so: ask right before. */
  send(facts: SendFacts): Promise<Answer> {
    return this.#palisade.decide("/v1/guard/otp/send", ofSend(facts), this.#choice);
  }

  /** Only the outcome; `null` if it could not be reported. */
  report(flow: Flow, outcome: Outcome, facts: AttemptFacts & { requestId: string }): Promise<Answer | null> {
    return this.#leave(flow, outcome, ofAttempt(facts));
  }

  /** A challenge for the client of these facts; `level` is that of the answer that asks. */
  async challenge(flow: ChallengeFlow, facts: ChallengedFacts, level?: string): Promise<Challenge> {
    const wire = { flow, ...clientOf(facts), ...(level === undefined ? {} : { level }) };
    const value = await this.#palisade.ask("POST", "/v1/challenge", wire);
    const kind = isObject(value) ? text(value["kind"]) : null;
    if (!isObject(value) || kind === null) throw new Unavailable("the answer has no challenge");
    const parameters = value["parameters"];
    return { kind, parameters: isObject(parameters) ? parameters : {}, expiresAt: text(value["expires_at"]) };
  }

  /** Exchanges a solution for a token, to be sent as `challengeToken` with the next check. */
  async verifyChallenge(flow: ChallengeFlow, facts: ChallengedFacts, solution: string): Promise<Verified> {
    const wire = { flow, ...clientOf(facts), solution };
    const value = await this.#palisade.ask("POST", "/v1/challenge/verify", wire);
    if (!isObject(value)) throw new Unavailable("the answer cannot be read");
    const token = value["passed"] === true ? text(value["challenge_token"]) : null;
    return { passed: token !== null, token, reason: text(value["reason"]) };
  }

  /** A session id to keep in a cookie of a device that has just logged in. */
  async issueSession(account: string): Promise<string> {
    const value = await this.#palisade.ask("POST", "/v1/guard/sessions", { account });
    const session = (value as { session_id?: unknown } | null)?.session_id;
    if (typeof session !== "string") throw new Unavailable("the answer has no session");
    return session;
  }

  /** Revokes one session, or all; how many there were. */
  async revokeSessions(account: string, sessionId?: string): Promise<number> {
    const facts = sessionId === undefined ? { account } : { account, session_id: sessionId };
    const value = await this.#palisade.ask("DELETE", "/v1/guard/sessions", facts);
    const revoked = (value as { revoked?: unknown } | null)?.revoked;
    return typeof revoked === "number" ? revoked : 0;
  }

  /** A refusal is held back as long as it asks for. */
  async #enter(flow: Flow, question: Question): Promise<Answer> {
    const answer = await this.#palisade.decide(`/v1/guard/${flow}/check`, question, this.#choice);
    if (!answer.allowed) await pause(answer);
    return answer;
  }

  /**
   * Reports under the id of the check, twice if it must and there is time: the second time
   * changes nothing where the first one arrived.
   */
  async #leave(flow: Flow, outcome: Outcome, question: Question): Promise<Answer | null> {
    const path = `/v1/guard/${flow}/${outcome}`;
    const signal = this.#palisade.deadline();
    for (let tries = 0; tries < 2; tries += 1) {
      try {
        const value = await this.#palisade.ask("POST", path, question.wire, signal);
        const answer = parse(value, question.requestId);
        if (outcome === "failure") await pause(answer);
        return answer;
      } catch (error) {
        if (!(error instanceof Unavailable)) throw error;
      }
    }
    this.#palisade.unreported(flow, outcome);
    return null;
  }
}

/** The growing delay before a refusal (A-BACKOFF). */
async function pause(answer: Answer): Promise<void> {
  const delayMs = Math.min(answer.delayMs ?? 0, DELAY_MS_MAX);
  if (delayMs > 0) await new Promise((resume) => setTimeout(resume, delayMs));
}
