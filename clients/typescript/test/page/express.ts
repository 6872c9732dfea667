import express from "express";
import { Palisade, type Identity } from "palisade-client";
import { edgeLimit, identityLimit, refusals, seen } from "palisade-client/express";

const client = new Palisade(process.env["PALISADE"] ?? "http://127.0.0.1:8080", { deadlineMs: 30_000 });
const guard = client.guard({ onUnavailable: "closed" });
const app = express();

// Before authentication: throttle, allowlist, address.
app.use(edgeLimit({ client, trustedProxies: [], onUnavailable: "closed" }));

// Your own authentication, then organisation, user, token, scopes, quotas.
function identity(request: express.Request): Identity | null {
  if (request.get("authorization") !== "Bearer demo") return null;
  return { org: "acme", user: "u1", token: "t1", scopes: ["reports:read"] };
}
app.use(identityLimit({ client, identity, onUnavailable: "closed" }));

app.get("/reports/:name", (request, response) => {
  response.json({ report: request.params.name });
});

app.post("/session", express.urlencoded({ extended: false }), async (request, response) => {
  const { username, password } = (request.body ?? {}) as Record<string, unknown>;
  if (typeof username !== "string" || typeof password !== "string") return void response.sendStatus(400);
  const facts = {
    ip: seen(request).ip,
    account: username.toLowerCase(),
    username,
    device: { clientId: request.get("x-device") },
  };
  const right = await guard.login(facts, async (attempt) => {
    const verified = password === "correct horse"; // your own check of the password
    if (verified) attempt.success();
    return verified;
  });
  response.status(right ? 200 : 401).send(right ? "welcome" : "wrong name or password");
});

// What a guard refuses is sent as Palisade says it, and bad input is answered 400.
app.use(refusals());
app.listen(Number(process.env["PORT"] ?? 3000), "127.0.0.1");
