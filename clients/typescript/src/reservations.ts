/** What the four calls of a reservation ask and answer: reserve, extend, settle, release. */

import { isObject, text, whole, type Answer } from "./answer.js";
import type { Palisade } from "./client.js";
import { PalisadeError, Unavailable } from "./errors.js";
import { newRequestId } from "./facts.js";

/** Amounts by unit: `{ requests: 1, tokens: 4000 }`. */
export type Costs = Readonly<Record<string, number>>;

/** How a reservation is asked for. */
export interface Terms {
  /** What it may cost at most, by unit; one request by default. */
  costs?: Costs | undefined;
  /** How long it lasts unless it is extended: `"90s"`, 60 seconds by default. */
  hold?: string | undefined;
  /** Takes what is left instead of a refusal. */
  atMost?: boolean | undefined;
}

/** More cost, a later end, or both. */
export type More = Pick<Terms, "costs" | "hold">;

/** A reservation that is held. `reservation` is the sealed token: any node takes it. */
export interface HeldReservation {
  readonly reservation: string;
  readonly expiresIn: number;
  readonly expiresAt: string | null;
  readonly reserved: Costs;
}

/** The decision about a reservation, and what is held if it was allowed. */
export interface ReserveAnswer {
  readonly answer: Answer;
  /** Also `null` if Palisade could not be asked and `onUnavailable` let it through. */
  readonly held: HeldReservation | null;
}

/**
 * The answer to an extension. If it is not `allowed`, the reservation stays as it was, unless it
 * has `expired` or was `settled` before.
 */
export interface ExtendAnswer {
  readonly allowed: boolean;
  readonly expired: boolean;
  readonly held: HeldReservation | null;
  readonly retryAfter: number | null;
  readonly error: string | null;
  readonly settled: Settlement | null;
}

/** The answer to a settle or a release; a second one gets the first answer again. */
export interface Settlement {
  /** False while the store is away: the server tries again by itself. */
  readonly recorded: boolean;
  /** It came too late to change anything. */
  readonly late: boolean;
  readonly used: Costs;
  readonly reserved: Costs;
  /** What was used beyond what was reserved. */
  readonly over: Costs;
}

/** The members of a question beside its facts. Units are named as the policy names them. */
export function ofTerms({ costs, hold, atMost }: Terms): Record<string, unknown> {
  return {
    ...(costs === undefined ? {} : { costs }),
    ...(hold === undefined ? {} : { hold }),
    ...(atMost === true ? { at_most: true } : {}),
  };
}

/** Asks for more cost, a later end, or both; throws `Unavailable` if there is no answer. */
export async function extend(palisade: Palisade, reservation: string, more: More): Promise<ExtendAnswer> {
  const { costs, hold } = more;
  const value = await followUp(palisade, "extend", question(reservation, ofTerms({ costs, hold })));
  const decision = value["decision"];
  if (decision !== "allow" && decision !== "deny") throw new Unavailable("the answer has no decision");
  const settled = value["settled"];
  return {
    allowed: decision === "allow",
    expired: value["expired"] === true,
    held: heldOf(value),
    retryAfter: whole(value["retry_after"]),
    error: text(value["error"]),
    settled: isObject(settled) ? settledOf(settled) : null,
  };
}

/** Says what was used; throws `Unavailable` if there is no answer. */
export async function settle(palisade: Palisade, reservation: string, costs: Costs): Promise<Settlement> {
  return settledOf(await followUp(palisade, "settle", question(reservation, { costs })));
}

/** Says that nothing was used; throws `Unavailable` if there is no answer. */
export async function release(palisade: Palisade, reservation: string): Promise<Settlement> {
  return settledOf(await followUp(palisade, "release", question(reservation, {})));
}

/**
 * Settles, or releases without costs: twice if it must and there is time. The second time changes
 * nothing where the first one arrived. `null` if it could not be said, which is logged: work that
 * has been done must not fail for it.
 */
export async function end(palisade: Palisade, reservation: string, costs: Costs | null): Promise<Settlement | null> {
  const facts = question(reservation, costs === null ? {} : { costs });
  const signal = palisade.deadline();
  let why: unknown;
  for (let tries = 0; tries < 2; tries += 1) {
    try {
      return settledOf(await followUp(palisade, costs === null ? "release" : "settle", facts, signal));
    } catch (error) {
      if (!(error instanceof PalisadeError)) throw error;
      why = error;
      if (!(error instanceof Unavailable)) break;
    }
  }
  palisade.unkept("settled", why);
  return null;
}

type Json = Record<string, unknown>;

function question(reservation: string, more: Json): Json {
  return { reservation, request_id: newRequestId(), ...more };
}

async function followUp(palisade: Palisade, step: string, facts: Json, signal?: AbortSignal): Promise<Json> {
  const value = await palisade.ask("POST", `/v1/${step}`, facts, signal);
  if (isObject(value) && value["request_id"] === facts["request_id"]) return value;
  throw new Unavailable("the answer belongs to another request");
}

/** What an answer says is held. */
export function heldOf(value: unknown): HeldReservation | null {
  const found = isObject(value) ? value : {};
  const [reservation, expiresIn] = [text(found["reservation"]), whole(found["expires_in"])];
  if (reservation === null || expiresIn === null) return null;
  return { reservation, expiresIn, expiresAt: text(found["expires_at"]), reserved: costsOf(found["reserved"]) };
}

function settledOf(value: Json): Settlement {
  if (typeof value["recorded"] !== "boolean") throw new Unavailable("the answer is not that of a settle");
  return {
    recorded: value["recorded"],
    late: value["late"] === true,
    used: costsOf(value["used"]),
    reserved: costsOf(value["reserved"]),
    over: costsOf(value["over"]),
  };
}

function costsOf(value: unknown): Costs {
  const entries = Object.entries(isObject(value) ? value : {});
  return Object.fromEntries(entries.filter((each): each is [string, number] => whole(each[1]) !== null));
}
