import { Blocked, Palisade } from "palisade-client";

const palisade = new Palisade(process.env["PALISADE"] ?? "http://127.0.0.1:8080", { deadlineMs: 30_000 });

// Your own call of a model.
async function complete(prompt: string): Promise<{ text: string; tokens: number }> {
  return { text: prompt.toUpperCase(), tokens: 812 };
}

function chat(prompt: string, estimate: number): Promise<string> {
  const facts = { ip: "203.0.113.5", method: "POST", path: "/v1/chat", org: "acme" };
  const terms = { costs: { requests: 1, tokens: estimate }, hold: "60s", onUnavailable: "closed" } as const;
  return palisade.reserve(facts, terms, async (r) => {
    const completed = await complete(prompt);
    r.used({ tokens: completed.tokens });
    return completed.text;
  });
}

console.log(await chat("hello", 4000));
try {
  await chat("a book", 9900);
} catch (error) {
  if (error instanceof Blocked) console.log(error.status, error.answer.body?.["error"]);
}
