// Budgets in tokens, money or bytes, and the reservations that are held.

import { ask, type Budget, type Frame, type Reservation, type Role } from "../api";
import { bar, card, fill, h, say, write } from "../dom";
import { moment, span, whole } from "../format";
import { cell } from "./cell";
import { askReason } from "./reason";

const LISTED = 100;
/** Seconds after which the list is asked for again. */
const EVERY = 5;

interface Listing {
  reservations: Reservation[];
  total: number;
}

export class Budgets {
  readonly element: HTMLElement;
  private readonly filled = h("div", {});
  private readonly body = h("tbody", {});
  private readonly status = h("p", { class: "hint", role: "status" });
  private listing: Listing = { reservations: [], total: 0 };
  private frame: Frame | null = null;
  private loadedAt = 0;
  private shown: { ends: number; left: HTMLElement }[] = [];

  constructor(private readonly role: Role) {
    const columns = ["Since", "Holds", "Subject", "Time left", ...(role === "operator" ? ["Action"] : [])];
    this.element = h(
      "div",
      {},
      h(
        "div",
        { class: "head" },
        h("h1", { tabindex: "-1" }, "Budgets"),
        h("button", { type: "button", click: () => void this.load() }, "Refresh"),
      ),
      h(
        "div",
        { class: "stack" },
        card("Fullest budgets", "Limits that count tokens, money or another unit, as this node last read them.", this.filled),
        card(
          "Reservations",
          "Held reservations that this node granted, the oldest first. Subjects are shown as digests.",
          this.status,
          h(
            "table",
            { class: "blocks" },
            h("caption", { class: "unseen" }, "Held reservations"),
            h("thead", {}, h("tr", {}, ...columns.map((name) => h("th", { scope: "col" }, name)))),
            this.body,
          ),
        ),
      ),
    );
  }

  open(): void {
    void this.load();
  }

  /** A second has passed. */
  tick(frame: Frame | null): void {
    this.frame = frame;
    const passed = (Date.now() - this.loadedAt) / 1000;
    for (const { ends, left } of this.shown) write(left, ends > passed ? span(ends - passed) : "over");
    this.drawBudgets();
    if (passed >= EVERY) void this.load();
  }

  private async load(): Promise<void> {
    this.loadedAt = Date.now();
    try {
      this.listing = await ask<Listing>("GET", `/admin/reservations?limit=${LISTED}`);
      this.drawReservations();
      this.drawBudgets();
    } catch (error) {
      write(this.status, (error as Error).message);
    }
  }

  private drawBudgets(): void {
    const budgets = this.frame?.outlook.budgets ?? [];
    if (budgets.length === 0) {
      fill(this.filled, h("p", { class: "none" }, "No budget is in use: no limit with its own unit has counted anything yet."));
      return;
    }
    fill(this.filled, h("ol", { class: "ranks" }, ...budgets.map((budget) => this.budget(budget))));
  }

  private budget(budget: Budget): HTMLElement {
    const own = this.listing.reservations.flatMap((one) => one.limits).filter((one) => one.bucket === budget.bucket);
    const reserved = own.reduce((sum, one) => sum + one.amount, 0);
    const share = budget.used / Math.max(1, budget.capacity);
    const left = Math.max(0, budget.capacity - budget.used);
    const held = reserved > 0 ? `, ${whole(Math.min(reserved, budget.used))} of it reserved` : "";
    const refill = budget.reset - Date.now() / 1000;
    const words = `${whole(budget.used)} of ${whole(budget.capacity)} ${budget.unit}${held}; ${whole(left)} left, full again in ${span(refill)}`;
    return h(
      "li",
      {},
      h("span", { class: "name" }, `${budget.limit}, ${budget.kind.replaceAll("_", " ")} ${budget.pseudonym}`),
      bar(share, share >= 1 ? "bad" : share >= 0.8 ? "warn" : ""),
      h("span", { class: "value" }, words),
    );
  }

  private drawReservations(): void {
    const { reservations, total } = this.listing;
    const more = total > reservations.length ? `, the oldest ${reservations.length} of them shown` : "";
    write(this.status, total === 0 ? "Nothing is reserved." : `${whole(total)} held${more}.`);
    this.shown = [];
    fill(this.body, ...reservations.map((one) => this.row(one)));
  }

  private row(one: Reservation): HTMLElement {
    const left = h("span", {}, span(one.expires_in));
    this.shown.push({ ends: one.expires_in, left });
    const slots = one.limits.filter((limit) => limit.slot).map((limit) => `a slot of ${limit.name}`);
    const amounts = Object.entries(one.reserved).map(([unit, amount]) => `${whole(amount)} ${unit}`);
    const subjects = new Set(one.limits.map((limit) => this.subject(limit)).filter((subject) => subject !== ""));
    const button = h("button", { type: "button", "aria-label": `Release the reservation ${one.id.slice(0, 8)}` }, "Release");
    button.addEventListener("click", () => this.release(one));
    return h(
      "tr",
      {},
      cell("Since", h("time", { datetime: one.since }, moment(new Date(one.since)))),
      cell("Holds", h("span", {}, [...amounts, ...slots].join(", ")), h("span", { class: "quiet" }, one.class)),
      cell("Subject", h("code", {}, [...subjects].join(" ") || "all callers")),
      cell("Time left", left),
      this.role === "operator" && cell("Action", button),
    );
  }

  /** The subject of a reserved bucket, as the budgets above name it if they show it. */
  private subject(limit: Reservation["limits"][number]): string {
    const budget = this.frame?.outlook.budgets.find((budget) => budget.bucket === limit.bucket);
    if (budget !== undefined) return `${budget.kind.replaceAll("_", " ")} ${budget.pseudonym}`;
    const parts = limit.subject.split(",");
    return parts.map((part) => part.replace(":", " ").slice(0, part.indexOf(":") + 13)).join(", ");
  }

  private release(one: Reservation): void {
    askReason("Release the reservation", async (reason) => {
      await ask("POST", `/admin/reservations/${one.id}/release`, { reason });
      say("The reservation was released.");
      await this.load();
    });
  }
}
