import { Palisade } from "palisade-client";
import { limited } from "palisade-client/fetch";

const client = new Palisade(process.env["PALISADE"] ?? "http://127.0.0.1:8080", { deadlineMs: 30_000 });

export const GET = limited(
  {
    client,
    // A route handler is not told its peer. Here only your proxy can connect: it is believed.
    peer: () => undefined,
    trustedProxies: ["unix"],
    onUnavailable: "closed",
    identity: (request) =>
      request.headers.get("authorization") === "Bearer demo" // your own authentication
        ? { org: "acme", user: "u1", token: "t1", scopes: ["reports:read"] }
        : null,
  },
  async (request, seen) => Response.json({ path: new URL(request.url).pathname, id: seen.requestId }),
);
