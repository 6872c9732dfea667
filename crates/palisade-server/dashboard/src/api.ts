// The service as the page asks it. The session's cookie is out of reach of this code; the
// token that shows that the page itself asks lives here and nowhere else.

export type Role = "viewer" | "operator" | "nobody";

export interface Columns {
  step: number;
  at: number[];
  outcomes: [string, number[]][];
  surfaces: [string, number[]][];
  shadow: number[];
  without_store: number[];
  p50_us: (number | null)[];
  p90_us: (number | null)[];
  p99_us: (number | null)[];
  store_us: (number | null)[];
  level: number[];
}

export interface Frequent {
  name: string;
  count: number;
}

export interface FrequentSubject {
  kind: string;
  pseudonym: string;
  count: number;
}

export interface NearQuota {
  key: string;
  used: number;
  limit: number;
  reset: number;
  ends_at: number | null;
}

/** A bucket of a limit that counts a unit of the policy's own. */
export interface Budget {
  limit: string;
  kind: string;
  pseudonym: string;
  bucket: string;
  unit: string;
  used: number;
  capacity: number;
  reset: number;
}

export interface Reservation {
  id: string;
  class: string;
  since: string;
  expires_at: string;
  expires_in: number;
  reserved: Record<string, number>;
  limits: { name: string; subject: string; bucket: string; amount: number; slot: boolean }[];
}

export interface PolicyNote {
  at: string;
  revision: number;
  enabled: boolean;
  limits: number;
  routes: number;
  changed: {
    added: string[];
    removed: string[];
    changed: [string, string, string][];
    left_out: number;
    settings: boolean;
    routes: boolean;
    enforcement: boolean;
  } | null;
}

export interface Frame {
  at: string;
  version: string;
  outlook: {
    started: string;
    newest: Columns;
    limits: Frequent[];
    classes: Frequent[];
    subjects: FrequentSubject[];
    shadow: Frequent[];
    quotas: NearQuota[];
    budgets: Budget[];
    notes: { at: string; kind: string; words: string }[];
    policies: PolicyNote[];
  };
  health: {
    ready: boolean;
    degradation_level: number;
    store: { state: string; p50_us: number | null; p99_us: number | null; last_error: string | null; since: string | null };
    policy: { source: string; state: string; last_error: string | null; cached: number; revision: number };
    circuits: [string, string][];
    modes: [string, string][];
  };
  policy: { revision: number; enabled: boolean; limits: number; tiers: string[] };
  guard: [string, string][];
  candidate: Candidate | null;
  viewers: number;
}

/** How a candidate policy would have decided otherwise. */
export interface Candidate {
  since: string;
  candidate_revision: number;
  verdicts: { agrees: number; newly_denied: number; newly_allowed: number; otherwise: number; not_compared: number };
  causes: { name: string; newly_denied: number; newly_allowed: number }[];
}

export interface Block {
  record: string;
  id: string;
  key: string;
  member?: string;
  rule: string;
  words: string;
  decision: string;
  level: string | null;
  until: string;
  retry_after: number;
}

export interface Finding {
  decision: string;
  rule?: string;
  words: string;
  level?: string;
  retry_after?: number;
  help?: string;
}

export interface Found {
  decision: string;
  findings: Finding[];
  blocks: Block[];
  scores: { record: string; key: string; score: number; falls_at: string; gone_at: string }[];
  buckets: {
    name: string;
    scope: string;
    classes: string[];
    limit: number;
    used: number;
    reset: number;
    retry_after: number | null;
    shadow: boolean;
  }[];
  truncated: boolean;
  allowlisted: boolean;
  free_in: number | null;
  quota?: { key: string; tier: string; quota_limit: number | null; quota_used: number; quota_reset: number };
  timeline: {
    at: string;
    event: string;
    class: string | null;
    limit: string | null;
    rule: string | null;
    op: string | null;
    decision: string | null;
    level: string | null;
    retry_after: number | null;
  }[];
}

/** What the service refused, in its own words. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

let csrf = "";
let signedOut = (): void => {};

/** Called when the service no longer knows the session. */
export function whenSignedOut(then: () => void): void {
  signedOut = then;
}

async function refusal(response: Response): Promise<Refused> {
  const body: unknown = await response.json().catch(() => null);
  const { message, details } = (body ?? {}) as { message?: string; details?: Record<string, string> };
  const fields = Object.entries(details ?? {}).map(([field, problem]) => `${field} ${problem}`);
  const words = [message ?? `The service answered ${response.status}`, ...fields].join(": ");
  return new Refused(response.status, words);
}

export async function ask<T>(method: string, path: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (method !== "GET") headers["x-csrf-token"] = csrf;
  const response = await fetch(path, {
    method,
    headers,
    body: body === undefined ? null : JSON.stringify(body),
    credentials: "same-origin",
    cache: "no-store",
  });
  if (response.status === 401) signedOut();
  if (!response.ok) throw await refusal(response);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

interface Session {
  role: Role;
  csrf: string;
}

/** Who is signed in. */
export async function session(): Promise<Role> {
  const told = await ask<Session>("GET", "/dashboard/session");
  csrf = told.csrf;
  return told.role;
}

export async function signIn(token: string): Promise<Role> {
  const response = await fetch("/dashboard/session", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ token }),
    credentials: "same-origin",
  });
  if (!response.ok) throw await refusal(response);
  const told = (await response.json()) as Session;
  csrf = told.csrf;
  return told.role;
}

export async function signOut(): Promise<void> {
  await ask("POST", "/dashboard/sign-out");
  csrf = "";
}
