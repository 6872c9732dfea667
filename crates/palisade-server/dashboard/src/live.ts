// What the page knows, kept current by the service: the histories and the newest frame.

import { ask, session, type Columns, type Frame } from "./api";

const SECONDS_KEPT = 3600;
const MINUTE = 60_000;

export const empty = (step: number): Columns => ({
  step,
  at: [],
  outcomes: ["allow", "soft_block", "deny", "hard_block"].map((name) => [name, []]),
  surfaces: [],
  shadow: [],
  without_store: [],
  p50_us: [],
  p90_us: [],
  p99_us: [],
  store_us: [],
  level: [],
});

function named(columns: [string, number[]][], name: string, length: number): number[] {
  const found = columns.find(([known]) => known === name);
  if (found !== undefined) return found[1];
  const made: number[] = new Array<number>(length).fill(0);
  columns.push([name, made]);
  return made;
}

/** Appends a second; false if it is known. */
export function append(to: Columns, newest: Columns): boolean {
  const at = newest.at[0];
  const last = to.at.at(-1);
  if (at === undefined || (last !== undefined && at <= last)) return false;
  const before = to.at.length;
  to.at.push(at);
  for (const part of ["outcomes", "surfaces"] as const) {
    for (const [name, values] of newest[part]) named(to[part], name, before).push(values[0] ?? 0);
    for (const [, values] of to[part]) if (values.length <= before) values.push(0);
  }
  for (const part of ["shadow", "without_store", "level"] as const) to[part].push(newest[part][0] ?? 0);
  for (const part of ["p50_us", "p90_us", "p99_us", "store_us"] as const) to[part].push(newest[part][0] ?? null);
  if (to.at.length > SECONDS_KEPT) shift(to);
  return true;
}

function shift(columns: Columns): void {
  columns.at.shift();
  for (const [, values] of [...columns.outcomes, ...columns.surfaces]) values.shift();
  for (const part of ["shadow", "without_store", "level"] as const) columns[part].shift();
  for (const part of ["p50_us", "p90_us", "p99_us", "store_us"] as const) columns[part].shift();
}

/** When the process began that was heard last. Sessions end with it, so a page hears of the next one after its door. */
let known: string | null = null;

export class Live {
  hour = empty(1);
  day = empty(60);
  frame: Frame | null = null;
  /** Whether frames come. */
  connected = false;
  private source: EventSource | null = null;
  private timer = 0;

  constructor(
    private readonly changed: () => void,
    private readonly restarted: () => void,
    private readonly ended: () => void,
  ) {}

  async start(): Promise<void> {
    await this.load();
    const source = new EventSource("/dashboard/events");
    this.source = source;
    source.onopen = () => {
      if (!this.connected && this.frame !== null) void this.load();
      this.connected = true;
    };
    source.onmessage = (event: MessageEvent<string>) => this.heard(JSON.parse(event.data) as Frame);
    source.onerror = () => {
      this.connected = false;
      this.changed();
      if (source.readyState === EventSource.CLOSED) void this.lost();
    };
    this.timer = window.setInterval(() => void this.loadDay(), MINUTE);
  }

  stop(): void {
    this.source?.close();
    window.clearInterval(this.timer);
  }

  private async lost(): Promise<void> {
    this.stop();
    const role = await session().catch(() => "away" as const);
    if (role === "nobody") this.ended();
    else window.setTimeout(() => void this.start().catch(() => this.lost()), 2000);
  }

  private async load(): Promise<void> {
    this.hour = await ask<Columns>("GET", "/dashboard/history?span=hour");
    await this.loadDay();
  }

  private async loadDay(): Promise<void> {
    this.day = await ask<Columns>("GET", "/dashboard/history?span=day");
  }

  private heard(frame: Frame): void {
    const before = this.frame;
    const { started } = frame.outlook;
    this.frame = frame;
    this.connected = true;
    if (before !== null && before.outlook.started !== started) {
      this.hour = empty(1);
      this.day = empty(60);
    }
    if (known !== null && known !== started) this.restarted();
    known = started;
    append(this.hour, frame.outlook.newest);
    this.changed();
  }
}
