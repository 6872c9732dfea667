import fastify from "fastify";
import { Palisade } from "palisade-client";
import { edgeLimit, identityLimit, seen, sentRefusal } from "palisade-client/fastify";

const client = new Palisade(process.env["PALISADE"] ?? "http://127.0.0.1:8080", { deadlineMs: 30_000 });
const guard = client.guard({ onUnavailable: "closed" });
const app = fastify();

app.addHook("onRequest", edgeLimit({ client, trustedProxies: [], onUnavailable: "closed" }));
app.addHook(
  "preHandler",
  identityLimit({
    client,
    identity: (request) =>
      request.headers["authorization"] === "Bearer demo" // your own authentication
        ? { org: "acme", user: "u1", token: "t1", scopes: ["reports:read"] }
        : null,
    onUnavailable: "closed",
  }),
);
app.setErrorHandler((error, _request, reply) => {
  if (!sentRefusal(error, reply)) void reply.send(error);
});

app.get("/reports/:name", async () => ({ report: true }));

const credentials = {
  type: "object",
  required: ["username", "password"],
  properties: { username: { type: "string" }, password: { type: "string" } },
};
type Credentials = { Body: { username: string; password: string } };

app.post<Credentials>("/session", { schema: { body: credentials } }, async (request, reply) => {
  const { username, password } = request.body;
  const facts = {
    ip: seen(request).ip,
    account: username.toLowerCase(),
    username,
    device: { clientId: request.headers["x-device"]?.toString() },
  };
  const right = await guard.login(facts, async (attempt) => {
    const verified = password === "correct horse"; // your own check of the password
    if (verified) attempt.success();
    return verified;
  });
  return reply.code(right ? 200 : 401).send(right ? "welcome" : "wrong name or password");
});

await app.listen({ port: Number(process.env["PORT"] ?? 3000), host: "127.0.0.1" });
