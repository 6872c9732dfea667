import { serve } from "@hono/node-server";
import { getConnInfo } from "@hono/node-server/conninfo";
import { Hono, type Context } from "hono";
import { Palisade } from "palisade-client";
import { edgeLimit, identityLimit, seen } from "palisade-client/hono";

const client = new Palisade(process.env["PALISADE"] ?? "http://127.0.0.1:8080", { deadlineMs: 30_000 });
const guard = client.guard({ onUnavailable: "closed" });
const app = new Hono();

app.use(
  edgeLimit({
    client,
    peer: (c: Context) => getConnInfo(c).remote.address,
    trustedProxies: [],
    onUnavailable: "closed",
  }),
);
app.use(
  "/reports/*",
  identityLimit({
    client,
    identity: (c) =>
      c.req.raw.headers.get("authorization") === "Bearer demo" // your own authentication
        ? { org: "acme", user: "u1", token: "t1", scopes: ["reports:read"] }
        : null,
    onUnavailable: "closed",
  }),
);

app.get("/reports/:name", (c) => c.json({ report: c.req.param("name") }));

app.post("/session", async (c) => {
  const { username, password } = await c.req.json<Record<string, unknown>>().catch(() => ({}) as never);
  if (typeof username !== "string" || typeof password !== "string") return c.body(null, 400);
  const facts = {
    ip: seen(c).ip,
    account: username.toLowerCase(),
    username,
    device: { clientId: c.req.header("x-device") },
  };
  const right = await guard.login(facts, async (attempt) => {
    const verified = password === "correct horse"; // your own check of the password
    if (verified) attempt.success();
    return verified;
  });
  return right ? c.text("welcome") : c.text("wrong name or password", 401);
});

serve({ fetch: app.fetch, port: Number(process.env["PORT"] ?? 3000), hostname: "127.0.0.1" });
