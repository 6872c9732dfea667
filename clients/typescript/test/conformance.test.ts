/** The behaviours that every client has. */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, test } from "node:test";
import { fileURLToPath } from "node:url";

import { BadFacts, BadInput, Blocked, Caps, Misconfigured, Palisade, Unavailable } from "palisade-client";
import type { Answer, Attempt, AttemptFacts, CheckFacts, HitFacts, OnUnavailable } from "palisade-client";
import { Server } from "./common.js";

type Json = Record<string, unknown>;

interface Step {
  do: "check" | "peek" | "batch" | "api_hit" | "login" | "otp" | "refund" | "issue_session" | "asked";
  facts?: Json | Json[];
  end?: "success" | "failure" | "abandon";
  on_unavailable?: "closed" | "open" | "caps";
  repeat?: number;
  connections_at_most?: number;
  at_least_ms?: number;
  at_most_ms?: number;
  expect: unknown;
}

interface Case {
  name: string;
  server: string;
  token?: string;
  deadline_ms?: number;
  caps?: { per_key: number; total: number; window_ms: number };
  hidden?: string[];
  steps: Step[];
}

const beside = fileURLToPath(new URL("../../../conformance", import.meta.url));
const folder = process.env["PALISADE_CONFORMANCE"] ?? beside;
const list = JSON.parse(readFileSync(join(folder, "cases.json"), "utf8")) as { policy: string; cases: Case[] };
const TOKEN = "a-token-that-callers-show-0123456789";

async function started(): Promise<Record<string, string>> {
  const real = await Server.start(list.policy);
  const guarded = await Server.start('[server]\ncaller_token = "env:CALLER"\n', { CALLER: TOKEN });
  const others = spawn("python3", [join(folder, "misbehaving.py")], { stdio: ["pipe", "pipe", "inherit"] });
  after(() => others.kill());
  const [line] = (await once(createInterface(others.stdout), "line")) as [string];
  const misbehaving = JSON.parse(line) as Record<string, string>;
  return { ...misbehaving, palisade: real.url, palisade_with_token: guarded.url };
}

const urls = await started();

/** `user_agent` is `userAgent` here; `$repeat` is written out. */
function written(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(written);
  if (typeof value !== "object" || value === null) return value;
  const repeat = (value as { $repeat?: [string, number] }).$repeat;
  if (repeat !== undefined) return repeat[0].repeat(repeat[1]);
  const camel = (name: string) => name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [camel(name), written(each)]));
}

/** A job's facts have no `op` here: they are known by having no address. */
function checkFacts(facts: unknown): CheckFacts {
  const { op: _, ...rest } = facts as Json;
  return rest as unknown as CheckFacts;
}

function ofAnswer(answer: Answer): Json {
  const { decision, status, mode, rule, error, receipt, headers, body } = answer;
  const named = { decided_by: answer.decidedBy, request_id: answer.requestId };
  return { is: "answer", decision, status, mode, rule, error, receipt, headers, body, ...named };
}

function ofError(error: unknown): Json {
  if (error instanceof Blocked) return { ...ofAnswer(error.answer), is: "blocked" };
  if (error instanceof BadInput) return { ...ofAnswer(error.answer), is: "bad_input", field: error.field };
  if (error instanceof BadFacts) return { is: "bad_facts", field: error.field, says: error.message };
  if (error instanceof Misconfigured) return { is: "misconfigured", says: error.message };
  if (error instanceof Unavailable) return { is: "unavailable", says: error.message };
  throw error;
}

async function attempted(client: Palisade, step: Step, facts: unknown, choice: OnUnavailable): Promise<Json> {
  const flow = step.do as "login" | "otp";
  const guard = client.guard({ onUnavailable: choice });
  const end = (attempt: Attempt) => {
    attempt[step.end ?? "failure"]();
    return attempt;
  };
  const attempt = await guard[flow](facts as AttemptFacts, end);
  const reported = step.end === "abandon" ? null : attempt.reported !== null;
  return { ...ofAnswer(attempt.check), reported };
}

async function played(client: Palisade, step: Step, given: unknown, onUnavailable: OnUnavailable): Promise<Json> {
  const choice = { onUnavailable };
  switch (step.do) {
    case "check":
    case "peek":
      return ofAnswer(await client[step.do](checkFacts(given), choice));
    case "batch":
      return { is: "answer", answers: (await client.batch((given as unknown[]).map(checkFacts), choice)).map(ofAnswer) };
    case "api_hit":
      return ofAnswer(await client.apiHit(given as HitFacts, choice));
    case "refund":
      return { is: "answer", refunded: await client.refund(given as string) };
    case "issue_session":
      return { is: "answer", session: (await client.guard(choice).issueSession((given as AttemptFacts).account)) !== "" };
    default:
      return attempted(client, step, given, onUnavailable);
  }
}

function partOf(expected: unknown, found: unknown, bound: Map<string, unknown>, where: string): void {
  if (Array.isArray(expected)) {
    assert.ok(Array.isArray(found) && found.length === expected.length, `${where}: ${JSON.stringify(found)}`);
    expected.forEach((each, index) => partOf(each, found[index], bound, `${where}[${index}]`));
  } else if (typeof expected === "object" && expected !== null) {
    assert.ok(typeof found === "object" && found !== null, where);
    for (const [name, each] of Object.entries(expected)) partOf(each, (found as Json)[name], bound, `${where}.${name}`);
  } else if (typeof expected === "string" && expected.startsWith("$")) {
    if (!bound.has(expected)) bound.set(expected, found);
    assert.ok(found !== undefined && found !== null && bound.get(expected) === found, where);
  } else if (expected === "*") {
    assert.ok(found !== undefined && found !== null && found !== "", where);
  } else {
    assert.equal(found ?? null, expected, where);
  }
}

for (const each of list.cases) {
  test(each.name, async () => {
    const url = urls[each.server] ?? assert.fail(each.server);
    const { per_key: perKey, total, window_ms: windowMs } = each.caps ?? { per_key: 1, total: 1, window_ms: 1 };
    const caps = new Caps({ perKey, total, windowMs });
    const token = each.token === undefined ? {} : { token: each.token };
    const client = new Palisade(url, { ...token, deadlineMs: each.deadline_ms ?? 30_000, log: () => undefined });
    const bound = new Map<string, unknown>();
    let receipt: unknown;
    for (const [number, step] of each.steps.flatMap((one, n) => Array<[number, Step]>(one.repeat ?? 1).fill([n, one]))) {
      const choice = step.on_unavailable === "caps" ? caps : (step.on_unavailable ?? "closed");
      const given = step.do === "refund" ? receipt : written(step.facts);
      const began = performance.now();
      const result =
        step.do === "asked"
          ? ((await (await fetch(`${url}/asked`)).json()) as Json)
          : await played(client, step, given, choice).catch(ofError);
      const took = performance.now() - began;
      partOf(step.expect, result, bound, `step ${number}`);
      assert.ok(took >= (step.at_least_ms ?? 0) && took <= (step.at_most_ms ?? 60_000), `${took}`);
      if (step.connections_at_most !== undefined) {
        const used = new Set((result as unknown as Json[]).map((one) => one["connection"]));
        assert.ok(used.size <= step.connections_at_most, `${used.size} connections`);
      }
      receipt = result["receipt"];
      for (const hidden of each.hidden ?? []) assert.ok(!JSON.stringify(result).includes(hidden), `step ${number}`);
    }
  });
}
