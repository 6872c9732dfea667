import { Blocked, Unavailable } from "./errors.js";

const DECISIONS = ["allow", "soft_block", "hard_block", "deny"] as const;
const MODES = ["normal", "fail_closed", "fail_open", "degraded", "disabled"] as const;

export type Decision = (typeof DECISIONS)[number];
export type Mode = (typeof MODES)[number];

/** One limit as it stands. */
export interface Reading {
  readonly name: string;
  readonly scope: string;
  readonly limit: number;
  readonly remaining: number;
  readonly reset: number;
  readonly retryAfter: number | null;
}

/** What to do, why, and what to send: `status`, `headers`, `body` are ready to copy. */
export interface Answer {
  readonly allowed: boolean;
  readonly decision: Decision;
  readonly status: number;
  readonly requestId: string;
  readonly mode: Mode;
  readonly level: string | null;
  readonly rule: string | null;
  readonly error: string | null;
  readonly retryAfter: number | null;
  readonly delayMs: number | null;
  /** The challenge to put: `captcha`, `out_of_band`, or the kind of `offer`. */
  readonly challenge: string | null;
  /** A challenge that the client can solve: `kind`, `url`, `parameters`. */
  readonly offer: Readonly<Record<string, unknown>> | null;
  /** Why `challengeToken` was not accepted. */
  readonly challengeRefused: string | null;
  readonly receipt: string | null;
  /** The money that a send may cost, to be settled by the gateway's report. */
  readonly reservation: string | null;
  readonly lockout: string | null;
  /** What a guard in shadow mode would have answered. */
  readonly shadow: Readonly<Record<string, unknown>> | null;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Readonly<Record<string, unknown>> | null;
  readonly limits: readonly Reading[];
  readonly reasons: readonly Readonly<Record<string, unknown>>[];
  /** `client`: Palisade could not be asked, and `onUnavailable` decided. */
  readonly decidedBy: "palisade" | "client";
}

type Json = Record<string, unknown>;

export const isObject = (value: unknown): value is Json =>
  typeof value === "object" && value !== null && !Array.isArray(value);
export const text = (value: unknown) => (typeof value === "string" ? value : null);
export const whole = (value: unknown) => (Number.isSafeInteger(value) ? (value as number) : null);
const list = (value: unknown) => (Array.isArray(value) ? value.filter(isObject) : []);

/**
 * Reads an answer. One that cannot be read, or belongs to another question, counts as
 * none: whatever is not clearly `allow` must never become it.
 */
export function parse(value: unknown, requestId: string): Answer {
  const decision = isObject(value) ? DECISIONS.find((known) => known === value["decision"]) : undefined;
  if (!isObject(value) || decision === undefined) throw new Unavailable("the answer has no decision");
  const status = whole(value["status"]);
  if (status === null || status < 200 || status > 599) throw new Unavailable("the answer has no status");
  if (value["request_id"] !== requestId) throw new Unavailable("the answer belongs to another request");
  return {
    allowed: decision === "allow",
    decision,
    status,
    requestId,
    mode: MODES.find((known) => known === value["mode"]) ?? "normal",
    level: text(value["level"]),
    rule: text(value["rule"]),
    error: text(value["error"]),
    retryAfter: whole(value["retry_after"]),
    delayMs: whole(value["delay_ms"]),
    challenge: text(isObject(value["challenge"]) ? value["challenge"]["kind"] : value["challenge"]),
    offer: isObject(value["challenge"]) ? value["challenge"] : null,
    challengeRefused: text(value["challenge_refused"]),
    receipt: text(value["receipt"]),
    reservation: text(value["reservation"]),
    lockout: text(value["lockout"]),
    shadow: isObject(value["shadow"]) ? value["shadow"] : null,
    headers: headers(value["headers"]),
    body: isObject(value["body"]) ? value["body"] : null,
    limits: list(value["limits"]).filter((each) => each["shadow"] !== true).map(reading),
    reasons: list(value["reasons"]),
    decidedBy: "palisade",
  };
}

function headers(value: unknown): Record<string, string> {
  const entries = Object.entries(isObject(value) ? value : {});
  return Object.fromEntries(entries.filter((each): each is [string, string] => typeof each[1] === "string"));
}

function reading(value: Json): Reading {
  return {
    name: text(value["name"]) ?? "",
    scope: text(value["scope"]) ?? "",
    limit: whole(value["limit"]) ?? 0,
    remaining: whole(value["remaining"]) ?? 0,
    reset: whole(value["reset"]) ?? 0,
    retryAfter: whole(value["retry_after"]),
  };
}

interface Local {
  decision: "allow" | "deny";
  mode: Mode;
  status: number;
  error: string | null;
  message: string;
  code: string;
  retryAfter: number | null;
  headers: Record<string, string>;
}

/** A decision made here, shaped like Palisade's own. */
export function local(requestId: string, made: Local): Answer {
  const wait = made.retryAfter;
  const body = {
    error: made.error,
    message: made.message,
    code: made.code,
    ...(wait === null ? {} : { retry_after: wait }),
    request_id: requestId,
    timestamp: new Date().toISOString(),
  };
  return {
    allowed: made.decision === "allow",
    decision: made.decision,
    status: made.status,
    requestId,
    mode: made.mode,
    level: null,
    rule: null,
    error: made.error,
    retryAfter: wait,
    delayMs: null,
    challenge: null,
    offer: null,
    challengeRefused: null,
    receipt: null,
    reservation: null,
    lockout: null,
    shadow: null,
    headers: { ...made.headers, ...(wait === null ? {} : { "Retry-After": String(wait) }) },
    body: made.decision === "allow" ? null : body,
    limits: [],
    reasons: [],
    decidedBy: "client",
  };
}

/** The refusal of a request that cannot be read; it names the field, never its value. */
export function badRequest(requestId: string, message = "The request cannot be read.", field?: string): Answer {
  const answer = local(requestId, {
    decision: "deny",
    mode: "normal",
    status: 400,
    error: "bad_request",
    message,
    code: "request.malformed",
    retryAfter: null,
    headers: {},
  });
  return field === undefined ? answer : { ...answer, body: { ...answer.body, field } };
}

/** The answer if it allows, else `Blocked`. */
export function orThrow(answer: Answer): Answer {
  if (!answer.allowed) throw new Blocked(answer);
  return answer;
}

/**
 * Headers of several answers about one request: of a name that more than one has, the
 * refusing answer's, else the one whose nearest limit has least left (L-CONSTRAINT).
 */
export function mergedHeaders(answers: readonly Answer[]): Record<string, string> {
  const room = (answer: Answer) => {
    const shares = answer.limits.filter((each) => each.limit > 0).map((each) => each.remaining / each.limit);
    return answer.allowed ? Math.min(2, ...shares) : -1;
  };
  const tightestLast = [...answers].sort((a, b) => room(b) - room(a));
  return Object.assign({}, ...tightestLast.map((answer) => answer.headers)) as Record<string, string>;
}
