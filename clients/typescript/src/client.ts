import { badRequest, orThrow, parse, type Answer } from "./answer.js";
import { BadFacts, BadInput, Misconfigured, PalisadeError, Unavailable } from "./errors.js";
import { isFromClient, longest, notUnicode } from "./fields.js";
import { newRequestId, ofCheck, ofHit, ofJob } from "./facts.js";
import type { CheckFacts, HitFacts, JobFacts, Question } from "./facts.js";
import { Guard } from "./guard.js";
import { Reservation } from "./holder.js";
import { extend, heldOf, ofTerms, release, settle } from "./reservations.js";
import type { Costs, ExtendAnswer, More, ReserveAnswer, Settlement, Terms } from "./reservations.js";
import { Slots } from "./slots.js";
import { decide, requireChoice, type OnUnavailable } from "./unavailable.js";

const ANSWER_BYTES_MAX = 16 * 1024 * 1024;
const BAD_FACTS = new Set([400, 422]);
const MISCONFIGURED = new Set([401, 403, 404, 405]);

export interface PalisadeOptions {
  /** The caller token, if Palisade wants one. */
  token?: string;
  /**
   * Bounds a whole question: waiting for a turn, looking up the server's name, connecting,
   * sending, receiving, and a second try.
   */
  deadlineMs?: number;
  /** Most questions at once. */
  connectionsMax?: number;
  /** Where it is said, once per change, that Palisade cannot be asked or can again. */
  log?: (message: string) => void;
  fetch?: typeof fetch;
}

/** What happens when Palisade cannot be asked: chosen at each use, there is no default. */
export interface Choice {
  onUnavailable: OnUnavailable;
}

/** Asks a Palisade server. One instance per process; `fetch` keeps its connections. */
export class Palisade {
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #deadlineMs: number;
  readonly #log: (message: string) => void;
  readonly #fetch: typeof fetch;
  readonly #slots: Slots;
  #reached = true;

  constructor(url: string, options: PalisadeOptions = {}) {
    if (!/^https?:\/\/[^/?#]+\/?$/.test(url)) {
      throw new Misconfigured("`url` must look like `http://127.0.0.1:8080`");
    }
    this.#url = url.replace(/\/$/, "");
    this.#headers = { "Content-Type": "application/json" };
    if (options.token !== undefined) this.#headers["X-Palisade-Caller"] = options.token;
    this.#deadlineMs = options.deadlineMs ?? 250;
    const connectionsMax = options.connectionsMax ?? 64;
    if (!(this.#deadlineMs > 0 && connectionsMax >= 1)) {
      throw new Misconfigured("`deadlineMs` and `connectionsMax` must be positive");
    }
    this.#slots = new Slots(connectionsMax);
    this.#log = options.log ?? ((message) => console.warn(message));
    this.#fetch = options.fetch ?? fetch;
  }

  /** Decides and counts. */
  check(facts: CheckFacts, choice: Choice): Promise<Answer> {
    return this.decide("/v1/check", ofCheck(facts), choice.onUnavailable);
  }

  /** Decides and counts nothing. */
  peek(facts: CheckFacts, choice: Choice): Promise<Answer> {
    return this.decide("/v1/peek", ofCheck(facts), choice.onUnavailable);
  }

  /** Up to 1,000 checks in one call, answered in their order. */
  async batch(checks: readonly CheckFacts[], { onUnavailable }: Choice): Promise<Answer[]> {
    const choice = requireChoice(onUnavailable);
    const questions = checks.map(ofCheck);
    try {
      const value = await this.ask("POST", "/v1/batch", { checks: questions.map((each) => each.wire) });
      const answers = (value as { answers?: unknown } | null)?.answers;
      if (!Array.isArray(answers) || answers.length !== questions.length) {
        throw new Unavailable("the answer has not one member for each check");
      }
      return questions.map((each, index) =>
        known(parse(answers[index], each.requestId), each.wire, `checks[${index}].class`),
      );
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      return questions.map((each) => decide(choice, each));
    }
  }

  /**
   * Gives back what the check with this receipt took; true if it was still counted. Throws
   * `Unavailable` if nobody could be asked.
   */
  async refund(receipt: string): Promise<boolean> {
    const value = await this.ask("POST", "/v1/refund", { receipt, request_id: newRequestId() });
    return (value as { refunded?: unknown } | null)?.refunded === true;
  }

  /** Counts a call of a heavy endpoint. */
  apiHit(facts: HitFacts, choice: Choice): Promise<Answer> {
    return this.decide("/v1/guard/api/hit", ofHit(facts), choice.onUnavailable);
  }

  /** Protection of logins and one-time codes. */
  guard(choice: Choice): Guard {
    return new Guard(this, requireChoice(choice.onUnavailable));
  }

  /**
   * Asks before a job is queued and throws `Blocked` if it may not be. If `queue` fails, the
   * job is not queued and the charge is given back.
   */
  async enqueue<T>(facts: JobFacts, choice: Choice, queue: () => Promise<T> | T): Promise<T> {
    const answer = orThrow(await this.decide("/v1/check", ofJob(facts), choice.onUnavailable));
    try {
      return await queue();
    } catch (error) {
      await this.#giveBack(answer.receipt);
      throw error;
    }
  }

  async #giveBack(receipt: string | null): Promise<void> {
    try {
      if (receipt !== null) await this.refund(receipt);
    } catch (error) {
      if (!(error instanceof PalisadeError)) throw error;
    }
  }

  /** Only reserves, for a host that extends and settles by itself. */
  reserve(facts: CheckFacts, terms: Terms & Choice): Promise<ReserveAnswer>;
  /**
   * Reserves what `work` may cost, extends by itself while it runs, and settles at its end by what
   * `reservation.used(…)` said. Throws `Blocked` if it is refused.
   */
  reserve<T>(
    facts: CheckFacts,
    terms: Terms & Choice,
    work: (reservation: Reservation) => Promise<T> | T,
  ): Promise<T>;
  async reserve<T>(
    facts: CheckFacts,
    { onUnavailable, ...terms }: Terms & Choice,
    work?: (reservation: Reservation) => Promise<T> | T,
  ): Promise<ReserveAnswer | T> {
    const since = performance.now();
    const reserved = await this.#reserve(facts, terms, onUnavailable);
    if (work === undefined) return reserved;
    return new Reservation(this, [facts, terms, onUnavailable], reserved, since).during(work);
  }

  /** Reserves more, or to a later end. Throws `Unavailable` if nobody could be asked. */
  extend(reservation: string, more: More = {}): Promise<ExtendAnswer> {
    return extend(this, reservation, more);
  }

  /**
   * Says what was used; a unit that is not named was used as reserved. Throws `Unavailable` if
   * nobody could be asked.
   */
  settle(reservation: string, costs: Costs): Promise<Settlement> {
    return settle(this, reservation, costs);
  }

  /** Says that nothing was used. Throws `Unavailable` if nobody could be asked. */
  release(reservation: string): Promise<Settlement> {
    return release(this, reservation);
  }

  async #reserve(facts: CheckFacts, terms: Terms, onUnavailable: OnUnavailable): Promise<ReserveAnswer> {
    const choice = requireChoice(onUnavailable);
    // The server answers a repeated id with the reservation that it gave before. One request may
    // reserve more than once, so each reservation has an id of its own.
    const correlationId = facts.correlationId ?? facts.requestId;
    const question = ofCheck({ ...facts, requestId: newRequestId(), correlationId });
    try {
      const value = await this.ask("POST", "/v1/reserve", { ...question.wire, ...ofTerms(terms) });
      const answer = known(parse(value, question.requestId), question.wire, "class");
      return { answer, held: answer.allowed ? heldOf(value) : null };
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      return { answer: decide(choice, question), held: null };
    }
  }

  /** Asks for a decision; the choice decides if there is none. */
  async decide(path: string, question: Question, onUnavailable: OnUnavailable): Promise<Answer> {
    const choice = requireChoice(onUnavailable);
    try {
      const value = await this.ask("POST", path, question.wire);
      return known(parse(value, question.requestId), question.wire, "class");
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      return decide(choice, question);
    }
  }

  /** Aborts when a question that is asked now has had its time. */
  deadline(): AbortSignal {
    return AbortSignal.timeout(this.#deadlineMs);
  }

  /** One question; what is no answer to it is thrown. A second try shares the first one's signal. */
  async ask(method: string, path: string, facts: object, signal = this.deadline()): Promise<unknown> {
    try {
      const value = await this.#exchange(method, path, facts, signal);
      if (!this.#reached) this.#log("palisade answers again");
      this.#reached = true;
      return value;
    } catch (error) {
      if (error instanceof Unavailable) this.#lost(error);
      throw error;
    }
  }

  /** An outcome was lost: said, without naming anybody. */
  unreported(flow: string, outcome: string): void {
    this.#log(`the ${outcome} of a ${flow} attempt could not be reported`);
  }

  /** A settle was lost, or an extension was refused as a mistake: said, without naming anybody. */
  unkept(what: "settled" | "extended", why: unknown): void {
    this.#log(`a reservation could not be ${what} (${why instanceof Error ? why.message : "unknown"})`);
  }

  #lost(why: Unavailable): void {
    if (this.#reached) this.#log(`palisade cannot be asked (${why.message}): \`onUnavailable\` decides`);
    this.#reached = false;
  }

  async #exchange(method: string, path: string, facts: object, signal: AbortSignal): Promise<unknown> {
    const torn = notUnicode(facts);
    if (torn !== undefined) throw refused(facts, `\`${torn}\` is not Unicode text`, torn);
    const init = { method, body: JSON.stringify(facts), headers: this.#headers, signal, redirect: "error" } as const;
    try {
      return await this.#slots.run(signal, async () => {
        const response = await this.#fetch(this.#url + path, init);
        return read(response.status, json(await bounded(response)), facts);
      });
    } catch (error) {
      throw error instanceof PalisadeError ? error : new Unavailable(cause(error));
    }
  }
}

/**
 * Refuses a class that no limit covers, by the field's name. Palisade denies such a request with
 * 503; where the application has named the class itself it is misspelt, or missing in the policy.
 */
function known(answer: Answer, wire: Question["wire"], field: string): Answer {
  if (answer.rule !== "L-DEFAULT-DENY" || wire["class"] === undefined) return answer;
  throw new BadFacts(`\`${field}\` names a class that no limit of the policy covers`, field);
}

async function bounded(response: Response): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  let size = 0;
  const reader = response.body?.getReader();
  for (;;) {
    const part = await reader?.read();
    if (part === undefined || part.done) return text + decoder.decode();
    size += part.value.byteLength;
    if (size > ANSWER_BYTES_MAX) {
      await reader?.cancel();
      throw new Unavailable("the answer is too large");
    }
    text += decoder.decode(part.value, { stream: true });
  }
}

function cause(error: unknown): string {
  if (!(error instanceof Error)) return "cannot be reached";
  if (error.name === "TimeoutError") return "no answer before the deadline";
  const code = (error.cause as { code?: unknown } | undefined)?.code;
  return typeof code === "string" ? `cannot be reached: ${code}` : "cannot be reached";
}

function json(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function read(status: number, value: unknown, facts: object): unknown {
  // 202: a settle that the server repeats by itself.
  if (status === 200 || status === 202) return value;
  const problem = (value ?? {}) as { detail?: unknown; field?: unknown };
  const detail = typeof problem.detail === "string" ? problem.detail : undefined;
  if (status === 413) {
    const field = longest(facts);
    throw refused(facts, `\`${field}\` is too long`, field);
  }
  if (BAD_FACTS.has(status)) {
    const field = typeof problem.field === "string" ? problem.field : undefined;
    throw refused(facts, detail ?? "palisade refused the question", field);
  }
  if (MISCONFIGURED.has(status)) {
    throw new Misconfigured(detail ?? `palisade answered ${status}: check the URL and \`token\``);
  }
  throw new Unavailable(`answered ${status}`);
}

function refused(facts: object, message: string, field: string | undefined): BadFacts {
  if (!isFromClient(field)) return new BadFacts(message, field);
  const id = (facts as { request_id?: unknown }).request_id;
  const requestId = typeof id === "string" ? id : newRequestId();
  return new BadInput(message, field, badRequest(requestId, message, field));
}
