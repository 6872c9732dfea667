"""OpenAI's own client behind the proxy at sys.argv[1]: it parses what the proxy answers."""

import sys

from openai import BadRequestError, OpenAI, RateLimitError

completions = OpenAI(
    base_url=sys.argv[1] + "/v1", api_key="sk-test", max_retries=0
).chat.completions


def ask(prompt, most=50, **rest):
    messages = [{"role": "user", "content": prompt}]
    return dict(model="small", max_tokens=most, messages=messages) | rest


plain = completions.create(**ask("30"))
assert plain.usage.total_tokens == 40, plain
raw = completions.with_raw_response.create(**ask("30"))
assert raw.headers["x-ratelimit-limit-tokens"] == "10000", raw.headers
assert int(raw.headers["x-ratelimit-remaining-tokens"]) < 10_000
chunks = list(completions.create(**ask("30", stream=True, stream_options={"include_usage": True})))
assert chunks[-1].usage.total_tokens == 40, chunks[-1]
with completions.create(**ask("30", stream=True, model="endless")) as endless:
    next(iter(endless))
try:
    completions.create(**ask("30", most=9_001))
    raise SystemExit("too large an estimate passed")
except BadRequestError as error:
    assert error.type == "invalid_request_error", error.body
try:
    for _ in range(9):
        completions.create(**ask("2000"))
    raise SystemExit("the budget has no end")
except RateLimitError as error:
    assert (error.type, error.code) == ("tokens", "rate_limit_exceeded"), error.body
    assert int(error.response.headers["retry-after"]) > 0
print("ok")
