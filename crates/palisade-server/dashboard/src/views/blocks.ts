// The blocks of the guard and of the lockout that run now, a page at a time.

import { ask, type Block, type Role } from "../api";
import { fill, h, say, write } from "../dom";
import { span, words } from "../format";
import { cell } from "./cell";
import { state } from "./overview";
import { askReason } from "./reason";

const PAGE = 50;

interface Listing {
  blocks: Block[];
  next: string | null;
}

export class Blocks {
  readonly element: HTMLElement;
  private readonly body = h("tbody", {});
  private readonly status = h("p", { class: "hint", role: "status" });
  private readonly previous = h("button", { type: "button" }, "Previous page");
  private readonly next = h("button", { type: "button" }, "Next page");
  /** Where the pages before began. */
  private trail: (string | null)[] = [null];
  private following: string | null = null;
  private loadedAt = 0;
  private shown: { block: Block; left: HTMLElement }[] = [];

  constructor(private readonly role: Role) {
    this.previous.addEventListener("click", () => {
      this.trail.pop();
      void this.load();
    });
    this.next.addEventListener("click", () => {
      this.trail.push(this.following);
      void this.load();
    });
    const columns = ["Record", "Rule", "Decision", "Time left", ...(role === "operator" ? ["Action"] : [])];
    this.element = h(
      "div",
      {},
      h(
        "div",
        { class: "head" },
        h("h1", { tabindex: "-1" }, "Blocks"),
        h("button", { type: "button", click: () => void this.load() }, "Refresh"),
      ),
      h("p", { class: "hint" }, "Subjects are shown as digests. Look somebody up to find their blocks."),
      this.status,
      h(
        "table",
        { class: "blocks" },
        h("caption", { class: "unseen" }, "Active blocks"),
        h("thead", {}, h("tr", {}, ...columns.map((name) => h("th", { scope: "col" }, name)))),
        this.body,
      ),
      h("div", { class: "buttons" }, this.previous, this.next),
    );
  }

  /** Begins at the first page. */
  open(): void {
    this.trail = [null];
    void this.load();
  }

  /** A second has passed. */
  tick(): void {
    const passed = (Date.now() - this.loadedAt) / 1000;
    for (const { block, left } of this.shown) {
      const rest = block.retry_after - passed;
      write(left, rest > 0 ? span(rest) : "over");
    }
  }

  private async load(): Promise<void> {
    const after = this.trail.at(-1) ?? null;
    const query = new URLSearchParams({ limit: String(PAGE), ...(after === null ? {} : { after }) });
    try {
      const listing = await ask<Listing>("GET", `/admin/blocks?${query}`);
      this.show(listing);
    } catch (error) {
      write(this.status, (error as Error).message);
    }
  }

  private show(listing: Listing): void {
    this.loadedAt = Date.now();
    this.following = listing.next;
    this.previous.disabled = this.trail.length <= 1;
    this.next.disabled = listing.next === null;
    const page = this.trail.length;
    const more = listing.next === null ? "" : ", and there are more";
    const none = page === 1 && listing.blocks.length === 0 && listing.next === null;
    write(this.status, none ? "Nothing is blocked." : `Page ${page}: ${listing.blocks.length} blocks${more}.`);
    this.shown = listing.blocks.map((block) => ({ block, left: h("span", {}) }));
    fill(this.body, ...this.shown.map(({ block, left }) => this.row(block, left)));
    this.tick();
  }

  private row(block: Block, left: HTMLElement): HTMLElement {
    const kind = block.decision === "hard_block" ? "bad" : "warn";
    const level = block.level === null ? "" : ` ${block.level}`;
    const button = h(
      "button",
      { type: "button", "aria-label": `Lift the block on ${block.record} ${block.id.slice(0, 8)}` },
      "Lift",
    );
    button.addEventListener("click", () => this.lift(block));
    return h(
      "tr",
      {},
      cell("Record", h("span", {}, words(block.record.replaceAll("-", " "))), h("code", {}, block.id.slice(0, 12))),
      cell("Rule", h("code", {}, block.rule), h("span", { class: "quiet" }, block.words)),
      cell("Decision", state(`${words(block.decision)}${level}`, kind)),
      cell("Time left", left),
      this.role === "operator" && cell("Action", button),
    );
  }

  private lift(block: Block): void {
    askReason("Lift the block", async (reason) => {
      const { record, id, key, member } = block;
      await ask("DELETE", "/admin/blocks", { record, id, key, member, reason });
      say("The block was lifted.");
      await this.load();
    });
  }
}
