// How the service does now, and how it did.

import type { Columns, Frame, Frequent } from "../api";
import { Chart, type Line } from "../charts";
import { bar, card, fill, h, write } from "../dom";
import { clock, count, duration, moment, percent, span, words } from "../format";
import type { Live } from "../live";

const OUTCOMES: Line[] = [
  { name: "allow", label: "allowed", colour: "--allow" },
  { name: "soft_block", label: "soft block", colour: "--soft" },
  { name: "deny", label: "denied", colour: "--deny" },
  { name: "hard_block", label: "hard block", colour: "--hard" },
];

const SURFACES: Record<string, [string, string]> = {
  api: ["decision API", "--line-1"],
  guard: ["guard", "--line-2"],
  proxy: ["proxy", "--line-3"],
  forward_auth: ["forward-auth", "--line-4"],
  envoy: ["Envoy", "--line-5"],
  resp: ["RESP", "--line-6"],
  library: ["library", "--line-7"],
};

const LATENCY: Line[] = [
  { name: "p50_us", label: "p50", colour: "--line-1" },
  { name: "p90_us", label: "p90", colour: "--line-2" },
  { name: "p99_us", label: "p99", colour: "--line-5" },
  { name: "store_us", label: "store p99", colour: "--line-7" },
];

const LEVEL: Line[] = [{ name: "level", label: "level", colour: "--deny" }];

const LEVELS = ["normal", "slow store or cached policies", "local fallback", "store and policy source down"];

type Range = "5min" | "hour" | "day";

export class Overview {
  readonly element: HTMLElement;
  private range: Range = "5min";
  private readonly figures = h("dl", { class: "figures" });
  private readonly outcomes = new Chart({ title: "Decisions per second by outcome", value: rate, stacked: true });
  private readonly surfaces = new Chart({ title: "Decisions per second by surface", value: rate });
  private readonly latency = new Chart({ title: "Duration of decisions", value: duration, most: 10 });
  private readonly level = new Chart({ title: "Degradation level", value: levelName, steps: true, most: 3 });
  private readonly dependencies = h("div", {});
  private readonly limits = h("ol", { class: "ranks" });
  private readonly classes = h("ol", { class: "ranks" });
  private readonly subjects = h("ol", { class: "ranks" });
  private readonly shadow = h("ol", { class: "ranks" });
  private readonly candidate = h("div", {});
  private readonly quotas = h("div", {});
  private readonly notes = h("ol", { class: "notes" });
  private readonly since = h("p", { class: "hint" });

  constructor(private readonly live: Live) {
    const ten = "The last 10 minutes.";
    this.element = h(
      "div",
      {},
      h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Overview"), this.ranges()),
      this.since,
      this.figures,
      h(
        "div",
        { class: "grid" },
        wide(card("Decisions", "Per second, by outcome.", this.outcomes.element)),
        card("Surfaces", "Decisions per second, by surface.", this.surfaces.element),
        card("Latency", "Duration of decisions and of store calls.", this.latency.element),
        card("Degradation", "0 is normal. At 3 the store and the policy source are down.", this.level.element),
        card("Store and breakers", "Modes of the guard's flows and of the limits.", this.dependencies),
        card("What refuses most", `Limits and rules. ${ten}`, this.limits),
        card("Classes refused most", ten, this.classes),
        card("Who is refused most", `Stable pseudonyms, the same as in the audit. ${ten}`, this.subjects),
        card("Shadow verdicts", `Requests that would have been refused. ${ten}`, this.shadow),
        card("Candidate policy", "Decisions that it would change.", this.candidate),
        card("Quotas near their end", "Projected from the use of this month.", this.quotas),
        wide(card("What happened", "Breakers, modes and levels, the newest first.", this.notes)),
      ),
    );
  }

  private ranges(): HTMLElement {
    const group = h("div", { class: "ranges", role: "group", "aria-label": "Time range" });
    const choices: [Range, string][] = [
      ["5min", "5 minutes"],
      ["hour", "1 hour"],
      ["day", "1 day"],
    ];
    for (const [range, label] of choices) {
      const button = h("button", { type: "button", "aria-pressed": String(range === this.range) }, label);
      button.addEventListener("click", () => {
        this.range = range;
        for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
        this.draw();
      });
      group.append(button);
    }
    return group;
  }

  draw(): void {
    this.charts();
    const { frame } = this.live;
    if (frame === null) return;
    const { outlook } = frame;
    write(
      this.since,
      `Counting since ${moment(new Date(outlook.started))}, when this process started; up to an hour by the second and a day by the minute.`,
    );
    this.drawFigures(frame);
    this.drawDependencies(frame);
    ranks(this.limits, outlook.limits, "--deny", "Nothing was refused.");
    ranks(this.classes, outlook.classes, "--soft", "Nothing was refused.");
    ranks(
      this.subjects,
      outlook.subjects.map(({ kind, pseudonym, count }) => ({ name: `${words(kind)} ${pseudonym}`, count })),
      "--hard",
      "Nobody was refused.",
    );
    ranks(this.shadow, outlook.shadow, "--line-2", "Nothing in shadow mode would have refused.");
    this.drawCandidate(frame);
    this.drawQuotas(frame);
    const notes = outlook.notes.map((note) =>
      h("li", {}, h("time", { datetime: note.at }, moment(new Date(note.at))), h("span", {}, note.words)),
    );
    fill(this.notes, ...(notes.length > 0 ? notes : [h("li", { class: "none" }, "Nothing since the start.")]));
  }

  private charts(): void {
    const { columns, from } = this.columns();
    const at = columns.at.slice(from);
    const per = (values: number[]): number[] => values.slice(from).map((value) => value / columns.step);
    const outcome = (name: string): number[] => per(columns.outcomes.find(([known]) => known === name)?.[1] ?? []);
    this.outcomes.show(OUTCOMES, at, OUTCOMES.map((line) => outcome(line.name)));
    const surfaces = columns.surfaces.map(([name]) => {
      const [label, colour] = SURFACES[name] ?? [name, "--line-7"];
      return { name, label, colour };
    });
    this.surfaces.show(surfaces, at, columns.surfaces.map(([, values]) => per(values)));
    const durations = LATENCY.map((line) => columns[line.name as "p50_us"].slice(from));
    this.latency.show(LATENCY, at, durations);
    this.level.show(LEVEL, at, [columns.level.slice(from)]);
  }

  private columns(): { columns: Columns; from: number } {
    if (this.range === "day") return { columns: this.live.day, from: 0 };
    const columns = this.live.hour;
    return { columns, from: this.range === "hour" ? 0 : Math.max(0, columns.at.length - 300) };
  }

  private drawFigures(frame: Frame): void {
    const { hour } = this.live;
    const last = (values: number[]): number => values.slice(-10).reduce((sum, value) => sum + value, 0);
    const seconds = Math.max(1, Math.min(10, hour.at.length));
    const all = hour.outcomes.reduce((sum, [, values]) => sum + last(values), 0);
    const allowed = last(hour.outcomes.find(([name]) => name === "allow")?.[1] ?? []);
    const p99 = hour.p99_us.slice(-10).reduce<number | null>((most, value) => Math.max(most ?? 0, value ?? 0), null);
    const { store, degradation_level: level } = frame.health;
    const shadow = last(hour.shadow);
    fill(
      this.figures,
      figure("Decisions per second", count(all / seconds), "decisions"),
      figure("Refused", percent(all - allowed, all), "refused", all - allowed > 0 ? "warn" : ""),
      figure("p99 latency", duration(p99), "p99"),
      figure("Store", store.state, "store", store.state === "up" ? "good" : store.state === "slow" ? "warn" : "bad"),
      figure("Degradation", level === 0 ? "none" : `level ${level}`, "level", level === 0 ? "good" : level > 1 ? "bad" : "warn"),
      figure("Shadow verdicts per second", count(shadow / seconds), "shadow"),
    );
  }

  private drawDependencies(frame: Frame): void {
    const { health } = frame;
    const modes = new Map(health.modes);
    const rows = health.circuits.map(([policy, circuit]) => {
      const mode = modes.get(policy) ?? "normal";
      return h(
        "tr",
        {},
        h("th", { scope: "row" }, policy),
        h("td", {}, state(words(circuit), circuit === "closed" ? "good" : circuit === "open" ? "bad" : "warn")),
        h("td", {}, state(words(mode), mode === "normal" ? "good" : mode === "fail_closed" ? "bad" : "warn")),
      );
    });
    const away = health.store.since === null ? "" : `, failing since ${clock(new Date(health.store.since))}`;
    const error = health.store.last_error === null ? "" : ` (last error: ${health.store.last_error})`;
    fill(
      this.dependencies,
      h(
        "p",
        {},
        `The store is ${health.store.state}${away}${error}. Store latency: p50 ${duration(health.store.p50_us)}, p99 ${duration(health.store.p99_us)}. `,
        `Policies come from the ${health.policy.source}, which is ${health.policy.state}.`,
      ),
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ...["Calls", "Breaker", "Mode"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, ...rows),
      ),
    );
  }

  private drawCandidate(frame: Frame): void {
    const { candidate } = frame;
    if (candidate === null) {
      fill(this.candidate, h("p", { class: "none" }, "No candidate policy runs beside the live one."));
      return;
    }
    const list = h("ol", { class: "ranks" });
    const differing = candidate.causes
      .map((cause) => ({ name: cause.name, count: cause.newly_denied + cause.newly_allowed }))
      .filter(({ count }) => count > 0);
    ranks(list, differing, "--line-5", "No differences from the live policy.");
    const { verdicts } = candidate;
    const compared = verdicts.agrees + verdicts.newly_denied + verdicts.newly_allowed + verdicts.otherwise;
    fill(
      this.candidate,
      h(
        "p",
        {},
        `Revision ${candidate.candidate_revision}, compared on ${count(compared)} decisions since ${moment(new Date(candidate.since))}: ${count(verdicts.newly_denied)} newly denied, ${count(verdicts.newly_allowed)} newly allowed, ${count(verdicts.otherwise)} refused otherwise.`,
      ),
      list,
    );
  }

  private drawQuotas(frame: Frame): void {
    const { quotas } = frame.outlook;
    if (quotas.length === 0) {
      fill(this.quotas, h("p", { class: "none" }, "No API key seen since the start has used more than 80 % of its quota."));
      return;
    }
    const now = Date.now() / 1000;
    const rows = quotas.map((quota) => {
      const ends =
        quota.used >= quota.limit
          ? "used up"
          : quota.ends_at === null
            ? "lasts until the month ends"
            : `ends in ${span(quota.ends_at - now)}`;
      const share = quota.used / quota.limit;
      return h(
        "li",
        {},
        h("span", { class: "name" }, `key ${quota.key}`),
        bar(share, share >= 1 ? "bad" : "warn"),
        h("span", { class: "value" }, `${count(quota.used)} of ${count(quota.limit)}, ${ends}`),
      );
    });
    fill(this.quotas, h("ol", { class: "ranks long" }, ...rows));
  }
}

function rate(value: number | null): string {
  return value === null ? "–" : count(value);
}

function levelName(value: number | null): string {
  return value === null ? "–" : `${value}${Number.isInteger(value) && value === 0 ? " normal" : ""}`;
}

function wide(element: HTMLElement): HTMLElement {
  element.classList.add("wide");
  return element;
}

function figure(name: string, value: string, id: string, kind = ""): HTMLElement {
  return h("div", { class: `figure ${kind}` }, h("dt", {}, name), h("dd", { "data-figure": id }, value));
}

export function state(text: string, kind: string): HTMLElement {
  return h("span", { class: `state ${kind}` }, text);
}

function ranks(list: HTMLElement, all: Frequent[], colour: string, none: string): void {
  if (all.length === 0) {
    fill(list, h("li", { class: "none" }, none));
    return;
  }
  const most = Math.max(...all.map((one) => one.count));
  fill(
    list,
    ...all.slice(0, 10).map((one) => {
      const shown = bar(one.count / most);
      const inner = shown.firstElementChild as HTMLElement;
      inner.style.background = `var(${colour})`;
      return h("li", {}, h("span", { class: "name" }, one.name), shown, h("span", { class: "value" }, count(one.count)));
    }),
  );
}

export { LEVELS };
