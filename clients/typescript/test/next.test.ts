/** A route handler of Next, with Next's own requests and responses. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { NextRequest, NextResponse } from "next/server.js";

import { limited } from "palisade-client/fetch";
import { Palisade } from "palisade-client";
import { PATIENT, Server } from "./common.js";

/** What Next hands to a handler beside the request. */
interface Context {
  params: Promise<{ shop: string }>;
}

async function route() {
  const client = new Palisade((await Server.start()).url, PATIENT);
  return limited(
    {
      client,
      peer: (_request, _context: Context) => undefined,
      trustedProxies: ["unix"],
      onUnavailable: "closed",
    },
    async (request: NextRequest, _seen, context: Context) => {
      const { shop } = await context.params;
      const response = NextResponse.json({ shop, page: request.nextUrl.searchParams.get("page") });
      response.cookies.set("a", "1");
      response.cookies.set("b", "2");
      return response;
    },
  );
}

function asked(address: string): [NextRequest, Context] {
  const headers = { "X-Forwarded-For": address };
  const request = new NextRequest("http://shop/auth/token?page=2", { method: "POST", headers });
  return [request, { params: Promise.resolve({ shop: "acme" }) }];
}

test("a route handler of Next is limited and keeps its cookies and parameters", async () => {
  const POST = await route();
  for (let n = 0; n < 10; n += 1) {
    const passed = await POST(...asked("198.51.100.7"));
    assert.equal(passed.status, 200);
    assert.deepEqual(await passed.json(), { shop: "acme", page: "2" });
    assert.equal(passed.headers.get("X-RateLimit-Remaining"), String(9 - n));
    assert.equal(passed.headers.getSetCookie().length, 2);
  }
  const refused = await POST(...asked("198.51.100.7"));
  assert.equal(refused.status, 429);
  assert.ok(Number(refused.headers.get("Retry-After")) > 0);
  assert.equal((await POST(...asked("198.51.100.8"))).status, 200);
});
