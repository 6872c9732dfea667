/** The reservations of a test double: no limit counts them, and only `expire()` ends them. */

export type Facts = Readonly<Record<string, unknown>>;
type Amounts = Record<string, number>;

const SECONDS: Readonly<Amounts> = { ms: 0.001, s: 1, min: 60, h: 3600 };

interface Kept {
  reserved: Amounts;
  expiresIn: number;
  isExpired: boolean;
  settled?: Facts;
}

export class FakeReservations {
  readonly #kept = new Map<string, Kept>();

  /** All that is reserved so far has ended. */
  expire(): void {
    for (const kept of this.#kept.values()) kept.isExpired = true;
  }

  /** Reserves what is asked for. */
  take(facts: Facts): Facts {
    const reserved = (facts["costs"] ?? { requests: facts["cost"] ?? 1 }) as Amounts;
    const kept = { reserved: { ...reserved }, expiresIn: seconds(facts["hold"] ?? "60s"), isExpired: false };
    const token = `reservation-${this.#kept.size + 1}`;
    this.#kept.set(token, kept);
    return held(token, kept);
  }

  /** Extends, if `answer` allows it. */
  extend(facts: Facts, answer: Facts): Facts {
    const token = String(facts["reservation"]);
    const kept = this.#kept.get(token);
    const denied = { request_id: facts["request_id"], decision: "deny", expired: false };
    if (kept?.settled !== undefined) return { ...denied, settled: kept.settled };
    if (kept === undefined || kept.isExpired) return { ...denied, expired: true };
    if (answer["decision"] !== "allow") {
      return { ...denied, retry_after: answer["retry_after"], error: answer["error"] };
    }
    for (const [unit, more] of Object.entries((facts["costs"] ?? {}) as Amounts)) {
      kept.reserved[unit] = (kept.reserved[unit] ?? 0) + more;
    }
    if (facts["hold"] !== undefined) kept.expiresIn = seconds(facts["hold"]);
    return { ...denied, decision: "allow", ...held(token, kept) };
  }

  /** Settles once; without costs nothing was used. */
  settle(facts: Facts): Facts {
    const kept = this.#kept.get(String(facts["reservation"]));
    const costs = facts["costs"] as Amounts | undefined;
    const units = Object.entries(kept?.reserved ?? {});
    const used = units.map(([unit, most]) => [unit, costs === undefined ? 0 : (costs[unit] ?? most), most] as const);
    const over = used.filter(([, each, most]) => each > most);
    const first = kept?.settled ?? {
      recorded: true,
      late: false,
      used: Object.fromEntries(used),
      reserved: Object.fromEntries(units),
      over: Object.fromEntries(over.map(([unit, each, most]) => [unit, each - most])),
    };
    if (kept !== undefined) kept.settled = first;
    return { ...first, request_id: facts["request_id"] };
  }
}

function held(token: string, kept: Kept): Facts {
  return { reservation: token, expires_in: kept.expiresIn, reserved: { ...kept.reserved } };
}

function seconds(hold: unknown): number {
  const [, count, unit] = /^(\d+)([a-z]+)$/.exec(String(hold)) ?? [];
  return Math.floor(Number(count) * (SECONDS[unit ?? ""] ?? Number.NaN));
}
