/** Which layers of a decision are asked for (L-LAYERS). */
export type Layers = "all" | "edge" | "identity";

/** One request. `token` is the token's id, never the token. */
export interface RequestFacts {
  ip: string;
  method: string;
  path: string;
  layers?: Layers | undefined;
  class?: string | undefined;
  userAgent?: string | undefined;
  org?: string | undefined;
  user?: string | undefined;
  token?: string | undefined;
  scopes?: readonly string[] | undefined;
  client?: { id: string; type?: "confidential" | "public" | undefined } | undefined;
  apiKey?: string | undefined;
  cost?: number | undefined;
  /** The country code, where the application knows it; looked up by address otherwise. */
  country?: string | undefined;
  /** The number of the network, as `country`. */
  asn?: number | undefined;
  /** Whether the answer carries a receipt, with which the charge can be given back. */
  receipt?: boolean | undefined;
  /** The token of `verifyChallenge`. It admits one request beyond a limit that asks for a challenge. */
  challengeToken?: string | undefined;
  requestId?: string | undefined;
  correlationId?: string | undefined;
}

/**
 * A background job about to be queued (T-JOBS): organisation and token quotas. Its answer
 * carries a receipt.
 */
export interface JobFacts {
  org: string;
  token?: string | undefined;
  user?: string | undefined;
  class?: string | undefined;
  cost?: number | undefined;
  requestId?: string | undefined;
  correlationId?: string | undefined;
}

/** What `check`, `peek` and `batch` take. A job has no address. */
export type CheckFacts = RequestFacts | JobFacts;

/** The device, as far as the host knows it. `known` and `trusted` are its assertions. */
export interface Device {
  sessionId?: string | undefined;
  clientId?: string | undefined;
  fingerprint?: string | undefined;
  confidence?: "low" | "medium" | "high" | undefined;
  known?: boolean | undefined;
  trusted?: boolean | undefined;
}

/**
 * One attempt with a password or a code. `username` (as typed) is what the lockout counts
 * on: without it there is no lockout and no delay.
 */
export interface AttemptFacts {
  ip: string;
  account: string;
  username?: string | undefined;
  device?: Device | undefined;
  userAgent?: string | undefined;
  acceptLanguage?: string | undefined;
  country?: string | undefined;
  asn?: number | undefined;
  challengePassed?: boolean | undefined;
  /** The number or mail address that a one-time code came by: a success verifies it. */
  destination?: string | undefined;
  /** The token of `verifyChallenge`. It frees one check. */
  challengeToken?: string | undefined;
  requestId?: string | undefined;
  correlationId?: string | undefined;
}

/**
 * One code that is about to be sent. `destination` is what was typed, whether or not an account
 * has it; `price` is in the currency of the policy's budget.
 */
export type SendFacts = Omit<AttemptFacts, "account" | "username" | "destination"> & {
  destination: string;
  channel: "sms" | "voice" | "email";
  account?: string | undefined;
  price?: number | undefined;
};

/** One call of a heavy endpoint (G-API). */
export type HitFacts = Omit<
  AttemptFacts,
  "account" | "username" | "challengePassed" | "challengeToken" | "destination"
> & {
  account?: string | undefined;
};

/** A question on its way: what is sent, its id, and what local caps count on. */
export interface Question {
  readonly wire: Record<string, unknown>;
  readonly requestId: string;
  readonly subjects: readonly string[];
}

const HEADER_CHARS_MAX = 512;

/** A fresh id: it joins a check with its outcome, and makes a retry harmless. */
export function newRequestId(): string {
  return crypto.randomUUID().replaceAll("-", "");
}

/**
 * A client's header as a fact: printable and bounded, so that a strange one does not make the
 * whole question unreadable.
 */
export function headerText(value: string | null | undefined): string | undefined {
  const plain = value?.slice(0, HEADER_CHARS_MAX).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, "");
  return plain === "" ? undefined : plain;
}

/** The question about a request or a job. */
export function ofCheck(facts: CheckFacts): Question {
  return "ip" in facts ? ofRequest(facts) : ofJob(facts);
}

/** The question about a request. */
export function ofRequest(facts: RequestFacts): Question {
  const { layers, ...rest } = facts;
  const named = layers === undefined || layers === "all" ? rest : { ...rest, layers };
  // Of a request that is asked about in two layers the first one counts the address.
  const address = layers === "identity" ? [] : [`ip ${facts.ip}`];
  const names = layers === "edge" ? [] : identities(facts);
  return question(named, [...address, ...names]);
}

/** The question about a job. */
export function ofJob(facts: JobFacts): Question {
  return question({ op: "job.enqueue", ...facts }, identities(facts));
}

/** The question about an attempt. */
export function ofAttempt(facts: AttemptFacts): Question {
  return question(facts, [`account ${facts.account}`, `ip ${facts.ip}`]);
}

/** The question about a code to send. */
export function ofSend(facts: SendFacts): Question {
  return question(facts, [`account ${facts.account ?? facts.destination}`, `ip ${facts.ip}`]);
}

/** The question about a call of a heavy endpoint. */
export function ofHit(facts: HitFacts): Question {
  return question(facts, [`ip ${facts.ip}`]);
}

function identities(facts: Pick<RequestFacts, "org" | "user" | "token">): string[] {
  const kinds = ["org", "user", "token"] as const;
  return kinds.filter((kind) => facts[kind]).map((kind) => `${kind} ${facts[kind]}`);
}

function question(facts: object, subjects: readonly string[]): Question {
  const { userAgent, acceptLanguage } = facts as { userAgent?: string; acceptLanguage?: string };
  const headers = { userAgent: headerText(userAgent), acceptLanguage: headerText(acceptLanguage) };
  const wire = snake({ requestId: newRequestId(), ...present(facts), ...headers });
  return { wire, requestId: String(wire["request_id"]), subjects };
}

function present(facts: object): Record<string, unknown> {
  const kept = Object.entries(facts).filter(([, value]) => value !== undefined && value !== null);
  return Object.fromEntries(kept);
}

/** `userAgent` is `user_agent` on the wire. */
function snake(facts: object): Record<string, unknown> {
  const entries = Object.entries(present(facts)).map(([name, value]) => {
    const nested = typeof value === "object" && value !== null && !Array.isArray(value);
    const key = name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
    return [key, nested ? snake(value) : value];
  });
  return Object.fromEntries(entries);
}
