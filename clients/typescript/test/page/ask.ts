import { Caps, Palisade } from "palisade-client";

const palisade = new Palisade(process.env["PALISADE"] ?? "http://127.0.0.1:8080", { deadlineMs: 30_000 });
const onUnavailable = new Caps({ perKey: 10, total: 500, windowMs: 60_000 });

const facts = { ip: "203.0.113.5", method: "POST", path: "/auth/token" };
const answer = await palisade.check(facts, { onUnavailable });
console.log(answer.decision, answer.status, answer.headers["X-RateLimit-Remaining"]);
