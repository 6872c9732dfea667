import { orThrow, type Answer } from "./answer.js";
import type { Palisade } from "./client.js";
import { BadFacts, Unavailable } from "./errors.js";
import { ofCheck, type CheckFacts } from "./facts.js";
import { end, extend } from "./reservations.js";
import type { Costs, ExtendAnswer, HeldReservation, More, ReserveAnswer, Settlement, Terms } from "./reservations.js";
import { decide, type OnUnavailable } from "./unavailable.js";

const AMOUNT_MAX = 2 ** 47;
/** Between two extensions: the shortest hold is a second. */
const PAUSE_MS_MIN = 333;

/** A reservation while work goes on, and what the work says of itself. */
export class Reservation {
  /** The decision. */
  readonly answer: Answer;
  /** What the settle was answered, after the work; `null` if it was lost. */
  settled: Settlement | null = null;
  readonly #palisade: Palisade;
  readonly #facts: CheckFacts;
  readonly #terms: Terms;
  readonly #choice: OnUnavailable;
  #held: HeldReservation | null = null;
  #ends = 0;
  #isLost = false;
  #said: Record<string, number> = {};
  #isReleased = false;
  #isOver = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    palisade: Palisade,
    [facts, terms, choice]: [CheckFacts, Terms, OnUnavailable],
    reserved: ReserveAnswer,
    since: number,
  ) {
    this.answer = orThrow(reserved.answer);
    this.#palisade = palisade;
    this.#facts = facts;
    this.#terms = terms;
    this.#choice = choice;
    this.#hold(reserved.held, since);
  }

  /** What is reserved, by unit; with `atMost` it may be less than was asked for. */
  get reserved(): Costs {
    return this.#held?.reserved ?? this.#terms.costs ?? { requests: this.#facts.cost ?? 1 };
  }

  /**
   * True if the reservation has ended, or its place was lost: best stop working. Never true of
   * one that `onUnavailable` let through.
   */
  get expired(): boolean {
    return this.#held !== null && (this.#isLost || performance.now() >= this.#ends);
  }

  /**
   * Says what was used in all, by unit; a later word replaces an earlier one. A unit that is not
   * named, `null` or `undefined` was used as reserved.
   */
  used(costs: Readonly<Record<string, number | null | undefined>>): void {
    const said = Object.entries(costs).filter((each): each is [string, number] => each[1] != null);
    if (Object.keys(costs).some((unit) => !Object.hasOwn(this.reserved, unit))) {
      throw new BadFacts("`costs` names a unit that was not reserved", "costs");
    }
    if (said.some(([, amount]) => !Number.isSafeInteger(amount) || amount < 0 || amount > AMOUNT_MAX)) {
      throw new BadFacts("`costs` must be whole numbers from 0 to 140737488355328", "costs");
    }
    this.#isReleased = false;
    Object.assign(this.#said, Object.fromEntries(said));
  }

  /** Nothing was used: everything goes back when the work has ended. */
  release(): void {
    this.#isReleased = true;
    this.#said = {};
  }

  /**
   * Reserves more, or to a later end; not `allowed`, the reservation stays as it was. Without an
   * answer `onUnavailable` decides.
   */
  async extend(more: More = {}): Promise<ExtendAnswer> {
    const nothing = { expired: false, held: null, retryAfter: null, error: null, settled: null };
    if (this.#held === null) return { allowed: true, ...nothing };
    try {
      return await this.#askToExtend(this.#held, more);
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      return { allowed: decide(this.#choice, ofCheck(this.#facts)).allowed, ...nothing };
    }
  }

  /** Does the work, extends meanwhile, and settles at its end. */
  async during<T>(work: (reservation: Reservation) => Promise<T> | T): Promise<T> {
    this.#keep();
    try {
      return await work(this);
    } finally {
      this.#isOver = true;
      clearTimeout(this.#timer);
      const held = this.#held;
      if (held !== null) this.settled = await end(this.#palisade, held.reservation, this.#costs(held));
    }
  }

  /** What is settled; `null` releases. Of nothing that was reserved nothing can be settled. */
  #costs(held: HeldReservation): Costs | null {
    const said = Object.keys(this.#said).length > 0 ? this.#said : held.reserved;
    return this.#isReleased || Object.keys(said).length === 0 ? null : said;
  }

  async #askToExtend(held: HeldReservation, more: More): Promise<ExtendAnswer> {
    const since = performance.now();
    const extended = await extend(this.#palisade, held.reservation, more);
    this.#isLost ||= extended.expired || extended.settled !== null;
    this.#hold(extended.held, since);
    return extended;
  }

  #hold(held: HeldReservation | null, since: number): void {
    if (held === null) return;
    this.#held = held;
    // Whole seconds, rounded down; an end never moves to an earlier time.
    this.#ends = Math.max(this.#ends, since + held.expiresIn * 1000);
  }

  /** Extends at a third of the time that is left, until the end. */
  #keep(): void {
    if (this.#held === null || this.#isOver || this.expired) return;
    const pause = Math.max((this.#ends - performance.now()) / 3, PAUSE_MS_MIN);
    this.#timer = setTimeout(() => void this.#keepOn(), pause);
  }

  /** Without an answer the next extension may get it. */
  async #keepOn(): Promise<void> {
    try {
      if (this.#held !== null) await this.#askToExtend(this.#held, {});
    } catch (error) {
      if (!(error instanceof Unavailable)) {
        this.#isLost = true;
        this.#palisade.unkept("extended", error);
      }
    }
    this.#keep();
  }
}
