// OpenAI's own client behind the proxy at process.argv[2]: it parses what the proxy answers.
const assert = require("node:assert");
const { OpenAI, BadRequestError, RateLimitError } = require("openai");

const client = new OpenAI({
  baseURL: process.argv[2] + "/v1",
  apiKey: "sk-test",
  maxRetries: 0,
});
const ask = (prompt, rest) =>
  client.chat.completions.create({
    model: "small",
    max_tokens: 50,
    messages: [{ role: "user", content: prompt }],
    ...rest,
  });

async function main() {
  const plain = await ask("30");
  assert.equal(plain.usage.total_tokens, 40);
  const { response } = await ask("30").withResponse();
  assert.equal(response.headers.get("x-ratelimit-limit-tokens"), "10000");
  let last;
  const stream = { stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await ask("30", stream)) last = chunk;
  assert.equal(last.usage.total_tokens, 40);
  // To leave the loop is to hang up.
  for await (const _ of await ask("30", { stream: true, model: "endless" })) break;
  await assert.rejects(ask("30", { max_tokens: 9001 }), (error) => {
    assert(error instanceof BadRequestError);
    assert.equal(error.type, "invalid_request_error");
    return true;
  });
  await assert.rejects(
    async () => {
      for (let i = 0; i < 9; i++) await ask("2000");
    },
    (error) => {
      assert(error instanceof RateLimitError);
      assert.equal(error.type, "tokens");
      assert.equal(error.code, "rate_limit_exceeded");
      assert(Number(error.headers.get("retry-after")) > 0);
      return true;
    },
  );
  console.log("ok");
}

main();
