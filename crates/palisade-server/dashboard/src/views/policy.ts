// The policy in force, and what the last reloads changed.

import type { Frame, PolicyNote } from "../api";
import { card, fill, h } from "../dom";
import { count, moment } from "../format";
import { state } from "./overview";

export class Policy {
  readonly element: HTMLElement;
  private readonly now = h("div", {});
  private readonly reloads = h("ol", { class: "reloads" });
  private drawn = "";

  constructor() {
    this.element = h(
      "div",
      {},
      h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Policy")),
      h(
        "div",
        { class: "grid" },
        wide(card("In force", "", this.now)),
        wide(card("Reloads", "Changes of each policy since the start, the newest first.", this.reloads)),
      ),
    );
  }

  draw(frame: Frame): void {
    const key = JSON.stringify([frame.policy, frame.outlook.policies, frame.guard]);
    if (key === this.drawn) return;
    this.drawn = key;
    const { policy } = frame;
    const guard = frame.guard.flatMap(([flow, mode]) => [
      h("span", {}, `${flow} `),
      state(mode, mode === "enforce" ? "good" : "warn"),
      " ",
    ]);
    fill(
      this.now,
      h(
        "dl",
        { class: "pairs" },
        h("dt", {}, "Revision"),
        h("dd", {}, String(policy.revision)),
        h("dt", {}, "Enforcement"),
        h("dd", {}, policy.enabled ? state("on", "good") : state("off: the kill switch is set", "bad")),
        h("dt", {}, "Limits"),
        h("dd", {}, count(policy.limits)),
        h("dt", {}, "Guard"),
        h("dd", {}, ...guard),
      ),
    );
    fill(this.reloads, ...frame.outlook.policies.map(reload));
  }
}

function wide(element: HTMLElement): HTMLElement {
  element.classList.add("wide");
  return element;
}

function reload(note: PolicyNote): HTMLElement {
  return h(
    "li",
    {},
    h(
      "p",
      {},
      h("time", { datetime: note.at }, moment(new Date(note.at))),
      ` revision ${note.revision}: ${count(note.limits)} limits, ${count(note.routes)} routes`,
    ),
    ...changes(note),
  );
}

function changes(note: PolicyNote): (HTMLElement | null)[] {
  const { changed } = note;
  if (changed === null) return [h("p", { class: "quiet" }, "The first policy since the start.")];
  const lines = [
    ...changed.added.map((name) => line("added", "good", name)),
    ...changed.removed.map((name) => line("removed", "bad", name)),
    ...changed.changed.map(([name, before, now]) => line("changed", "warn", name, `${before} → ${now}`)),
  ];
  if (changed.left_out > 0) lines.push(h("li", { class: "quiet" }, `and ${changed.left_out} more`));
  if (changed.settings) lines.push(line("changed", "warn", "guard, lockout or fallback"));
  if (changed.routes) lines.push(line("changed", "warn", "routes"));
  if (changed.enforcement) lines.push(line("changed", "bad", note.enabled ? "enforcement on" : "enforcement off"));
  if (lines.length === 0) lines.push(h("li", { class: "quiet" }, "No change in decisions."));
  return [h("ul", {}, ...lines)];
}

function line(what: string, kind: string, name: string, detail = ""): HTMLElement {
  return h("li", {}, state(what, kind), " ", h("code", {}, name), detail !== "" && h("span", { class: "quiet" }, ` ${detail}`));
}
