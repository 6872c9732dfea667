// Looking a subject up. What was typed leaves the field at once, is sent in a body and is
// hashed there; the page keeps it only to act on it.

import { ask, type Found, type Role } from "../api";
import { bar, card, fill, h, say, write } from "../dom";
import { count, moment, span, words } from "../format";
import { state } from "./overview";

interface Kind {
  value: string;
  label: string;
  hint: string;
  /** A second field that belongs to it. */
  beside?: { name: string; label: string; required: boolean };
}

const KINDS: Kind[] = [
  { value: "account", label: "Account", hint: "As the application reports it to the guard." },
  { value: "ip", label: "IP address", hint: "An IPv6 address stands for its /64." },
  {
    value: "username",
    label: "Name at an address",
    hint: "As typed at the login. Shows its lockout.",
    beside: { name: "ip", label: "IP address", required: true },
  },
  {
    value: "user",
    label: "User",
    hint: "",
    beside: { name: "org", label: "Organisation, if it has one", required: false },
  },
  { value: "org", label: "Organisation", hint: "" },
  { value: "client", label: "OAuth client", hint: "" },
  { value: "api_key", label: "API key", hint: "The key itself or its hash." },
];

type Subject = Record<string, string>;

export class Lookup {
  readonly element: HTMLElement;
  private readonly kind = h(
    "select",
    { id: "kind", name: "kind" },
    ...KINDS.map(({ value, label }) => h("option", { value }, label)),
  );
  private readonly value = field("value");
  private readonly beside = field("beside");
  private readonly besideRow = h("div", { class: "field" });
  private readonly hint = h("p", { class: "hint", id: "value-hint" });
  private readonly problem = h("p", { class: "problem", role: "alert" });
  private readonly result = h("section", { class: "result", "aria-label": "Result", tabindex: "-1" });
  private subject: Subject | null = null;
  private tiers: string[] = [];

  constructor(private readonly role: Role) {
    this.value.setAttribute("aria-describedby", "value-hint");
    this.value.required = true;
    this.kind.addEventListener("change", () => this.choose());
    this.element = h(
      "div",
      {},
      h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Look up")),
      h("p", { class: "hint" }, "Your input is hashed before the lookup. It is not shown again and never logged."),
      h(
        "form",
        {
          class: "card lookup",
          method: "post",
          autocomplete: "off",
          submit: (event) => {
            event.preventDefault();
            void this.submit();
          },
        },
        h("div", { class: "field" }, h("label", { for: "kind" }, "Kind"), this.kind),
        h("div", { class: "field" }, h("label", { for: "value" }, "Identifier"), this.value, this.hint),
        this.besideRow,
        h("button", { class: "primary", type: "submit" }, "Look up"),
        this.problem,
      ),
      this.result,
    );
    this.choose();
  }

  know(tiers: string[]): void {
    this.tiers = tiers;
  }

  private chosen(): Kind {
    return KINDS.find(({ value }) => value === this.kind.value) ?? KINDS[0]!;
  }

  private choose(): void {
    const { hint, beside } = this.chosen();
    write(this.hint, hint);
    this.beside.required = beside?.required ?? false;
    this.beside.value = "";
    if (beside === undefined) fill(this.besideRow);
    else fill(this.besideRow, h("label", { for: "beside" }, beside.label), this.beside);
  }

  private async submit(): Promise<void> {
    const { value, beside } = this.chosen();
    const subject: Subject = { [value]: this.value.value.trim() };
    const other = this.beside.value.trim();
    if (beside !== undefined && other !== "") subject[beside.name] = other;
    this.value.value = "";
    this.beside.value = "";
    this.subject = subject;
    await this.load(true);
  }

  private async load(takesFocus: boolean): Promise<void> {
    if (this.subject === null) return;
    write(this.problem, "");
    try {
      const found = await ask<Found>("POST", "/admin/lookup", this.subject);
      this.show(found, this.subject);
      if (takesFocus) this.result.focus();
    } catch (error) {
      write(this.problem, (error as Error).message);
      fill(this.result);
    }
  }

  private show(found: Found, subject: Subject): void {
    const kind = KINDS.find(({ value }) => value in subject && value !== "ip")?.label ?? "IP address";
    fill(
      this.result,
      verdict(found, kind),
      h(
        "div",
        { class: "grid" },
        wide(card("Why", "", sentences(found))),
        found.scores.length > 0 && card("Scores", "Scores fall by one point at a time unless more failures are added.", scores(found)),
        (found.buckets.length > 0 || found.quota !== undefined) &&
          card("Buckets", found.truncated ? "The first 200 buckets." : "", buckets(found)),
        card("Timeline", "Audit events that this process still remembers.", timeline(found)),
        this.role === "operator"
          ? card("Actions", "Each change is audited with your reason.", this.actions(found, subject))
          : card("Actions", "", h("p", { class: "none" }, "Your role can read everything and change nothing.")),
      ),
    );
  }

  private actions(found: Found, subject: Subject): HTMLElement {
    const reason = field("reason");
    reason.required = true;
    const problem = h("p", { class: "problem", role: "alert" });
    const buttons = h("div", { class: "buttons" });
    const act = (label: string, done: string, change: (reason: string) => Promise<unknown>, primary = false): void => {
      const button = h("button", { type: "submit", class: primary ? "primary" : "" }, label);
      button.addEventListener("click", (event) => {
        event.preventDefault();
        if (!reason.reportValidity()) return;
        button.disabled = true;
        write(problem, "");
        change(reason.value)
          .then(async () => {
            await this.load(false);
            say(done);
            this.note(done);
          })
          .catch((error: Error) => write(problem, error.message))
          .finally(() => {
            button.disabled = false;
          });
      });
      buttons.append(button);
    };
    const guarded = "account" in subject || "ip" in subject;
    if (guarded) {
      const lift = (score: boolean) => (reason: string) => ask("DELETE", "/admin/blocks", { ...subject, score, reason });
      if (found.blocks.length > 0) act("Lift the block", "The block was lifted.", lift(false), true);
      if (found.blocks.length > 0 || found.scores.length > 0)
        act("Lift and clear the score", "The block was lifted and the score cleared.", lift(true));
    }
    if (found.buckets.length > 0) {
      const named = { ...subject };
      if (found.quota !== undefined) named["api_key"] = found.quota.key;
      const reset = (reason: string) => ask("POST", "/admin/rate-limit/reset", { reason, subjects: [named] });
      act("Reset the buckets", "The buckets were reset.", reset);
    }
    const extra: HTMLElement[] = [];
    const allowed = allowlisting(subject);
    if (allowed !== null) {
      const time = h(
        "select",
        { id: "allow-for" },
        ...([["3600", "an hour"], ["86400", "a day"], ["604800", "a week"]] as const).map(([value, label]) =>
          h("option", { value }, label),
        ),
      );
      extra.push(h("div", { class: "field" }, h("label", { for: "allow-for" }, "On the allowlist for"), time));
      act("Put on the allowlist", "The allowlist entry was added.", (reason) => {
        const until = new Date(Date.now() + Number(time.value) * 1000);
        const expires_at = `${until.toISOString().slice(0, 19)}Z`;
        return ask("POST", "/admin/rate-limit/allowlist", { ...allowed, reason, expires_at });
      });
    }
    const { quota } = found;
    if (quota !== undefined && this.tiers.length > 0) {
      const tier = h(
        "select",
        { id: "tier" },
        ...this.tiers.map((name) => h("option", { value: name, selected: name === quota.tier }, name)),
      );
      extra.push(h("div", { class: "field" }, h("label", { for: "tier" }, "Tier"), tier));
      act("Change the tier", "The tier was changed.", (reason) =>
        ask("PUT", `/admin/rate-limit/quota/${quota.key}/tier`, { tier: tier.value, reason }),
      );
    }
    if (buttons.children.length === 0) return h("p", { class: "none" }, "There is nothing to change.");
    return h(
      "form",
      { method: "post", submit: (event) => event.preventDefault() },
      h("div", { class: "field" }, h("label", { for: "reason" }, "Reason, for the audit"), reason),
      ...extra,
      buttons,
      problem,
    );
  }

  private note(text: string): void {
    this.result.prepend(h("p", { class: "done" }, text));
  }
}

function field(id: string): HTMLInputElement {
  return h("input", { id, name: id, type: "text", autocomplete: "off", autocapitalize: "none", spellcheck: "false", maxlength: "400" });
}

function wide(element: HTMLElement): HTMLElement {
  element.classList.add("wide");
  return element;
}

function allowlisting(subject: Subject): Record<string, string> | null {
  const { ip, user, org, username } = subject;
  if (username !== undefined) return null;
  if (ip !== undefined) return { type: "ip", identifier: ip };
  if (user !== undefined) return { type: "user_id", identifier: user, ...(org === undefined ? {} : { org }) };
  return null;
}

function verdict(found: Found, kind: string): HTMLElement {
  const against = found.findings.length > 0;
  const kindOf = !against ? "good" : found.decision === "hard_block" || found.decision === "deny" ? "bad" : "warn";
  const free = found.free_in === null ? "" : ` Ends in ${span(found.free_in)} unless more is counted.`;
  const passes = found.allowlisted ? " An allowlist entry lets it pass its limits." : "";
  const text = against ? `${kind}: ${words(found.decision)}.${free}` : `${kind}: no active block and no exhausted limit.`;
  return h("p", { class: `verdict ${kindOf}`, "data-verdict": found.decision }, text + passes);
}

function sentences(found: Found): HTMLElement {
  if (found.findings.length === 0) return h("p", { class: "none" }, "No active block and no exhausted limit.");
  const lines = found.findings.map((finding) =>
    h(
      "li",
      {},
      finding.rule !== undefined && h("code", {}, finding.rule),
      " ",
      h("span", {}, `${finding.words[0]?.toUpperCase() ?? ""}${finding.words.slice(1)}.`),
      finding.retry_after !== undefined && h("span", { class: "quiet" }, ` Ends in ${span(finding.retry_after)}.`),
      finding.help !== undefined && h("code", { class: "command" }, finding.help),
    ),
  );
  return h("ul", { class: "sentences" }, ...lines);
}

function scores(found: Found): HTMLElement {
  const lines = found.scores.map((score) =>
    h(
      "li",
      {},
      h("span", { class: "name" }, `${words(score.record.replaceAll("-", " "))} ${score.key}`),
      bar(score.score / 20, "warn"),
      h(
        "span",
        { class: "value" },
        `${score.score} points, one less at ${moment(new Date(score.falls_at))}, zero at ${moment(new Date(score.gone_at))}`,
      ),
    ),
  );
  return h("ol", { class: "ranks long" }, ...lines);
}

function buckets(found: Found): HTMLElement {
  const sorted = [...found.buckets].sort((a, b) => b.used / b.limit - a.used / a.limit);
  const now = Date.now() / 1000;
  const lines = sorted.map((bucket) => {
    const share = bucket.used / bucket.limit;
    const reset = bucket.used === 0 ? "" : `, full again in ${span(bucket.reset - now)}`;
    const retry = bucket.retry_after === null ? "" : `, next request fits in ${span(bucket.retry_after)}`;
    const classes = bucket.classes.length === 0 ? "" : ` (${bucket.classes.join(", ")})`;
    return h(
      "li",
      {},
      h("span", { class: "name" }, `${bucket.name}${classes}${bucket.shadow ? ", shadow" : ""}`),
      bar(share, share >= 1 ? "bad" : share >= 0.8 ? "warn" : "good"),
      h("span", { class: "value" }, `${count(bucket.used)} of ${count(bucket.limit)}${reset}${retry}`),
    );
  });
  const { quota } = found;
  if (quota !== undefined)
    lines.unshift(h("li", {}, h("span", { class: "name" }, "Tier"), h("span", { class: "value" }, quota.tier)));
  return h("ol", { class: "ranks long" }, ...lines);
}

function timeline(found: Found): HTMLElement {
  if (found.timeline.length === 0) return h("p", { class: "none" }, "No recent events.");
  const lines = found.timeline.map((past) => {
    const about = [past.op ?? past.class, past.limit, past.rule].filter((part) => part !== null).join(", ");
    const kind = past.decision === "allow" ? "good" : past.decision === "soft_block" ? "warn" : "bad";
    const level = past.level === null ? "" : ` ${past.level}`;
    return h(
      "li",
      {},
      h("time", { datetime: past.at }, moment(new Date(past.at))),
      h(
        "span",
        {},
        past.decision !== null && state(`${words(past.decision)}${level}`, kind),
        ` ${about === "" ? past.event : about}`,
      ),
    );
  });
  return h("ol", { class: "notes" }, ...lines);
}
