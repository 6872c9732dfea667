"""A stand-in for a language model, with OpenAI's chat completions. It needs Python alone.

    python3 model.py [PORT]

A prompt that is a number is answered with so many words, every other one with five. The tests of
this repository ask the models `broken`, `silent`, `endless`, `quiet` and `zipped` too.
"""

import gzip
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        try:
            asked = json.loads(body)
            prompt = asked["messages"][-1]["content"]
        except (ValueError, LookupError):
            return self.answer(400, {"error": {"message": "no messages"}})
        name = asked.get("model", "small")
        words = int(prompt) if prompt.isdigit() else 5
        usage = {
            "prompt_tokens": 10,
            "completion_tokens": words,
            "total_tokens": 10 + words,
            "prompt_tokens_details": {"cached_tokens": 4},
        }
        if name == "broken":
            return self.answer(500, {"error": {"message": "as told"}})
        if name == "silent":
            time.sleep(60)
        if asked.get("stream"):
            return self.stream(name, words, asked.get("stream_options"), usage)
        message = {"role": "assistant", "content": " ".join(["word"] * words)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        self.answer(200, self.chunk("chat.completion", name, [choice], usage), name == "zipped")

    def chunk(self, kind, name, choices, usage=None):
        return {
            "id": "chatcmpl-1",
            "object": kind,
            "created": 0,
            "model": name,
            "choices": choices,
            "usage": usage,
        }

    def answer(self, status, value, zips=False):
        body = json.dumps(value).encode()
        self.send_response(status)
        if zips and "gzip" in self.headers.get("accept-encoding", ""):
            body = gzip.compress(body)
            self.send_header("content-encoding", "gzip")
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, name, words, options, usage):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        said = 0
        while said < words or name in ("endless", "quiet"):
            if name == "quiet" and said > 0:
                time.sleep(60)
            choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": None}
            so_far = {"total_tokens": 10 + said + 1} if name == "endless" else None
            self.event(json.dumps(self.chunk("chat.completion.chunk", name, [choice], so_far)))
            said += 1
            if name == "endless":
                time.sleep(0.01)
        if options and options.get("include_usage"):
            self.event(json.dumps(self.chunk("chat.completion.chunk", name, [], usage)))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data):
        data = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def handle(self):
        try:
            super().handle()
        except OSError:
            pass  # The client has gone.

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
    server = ThreadingHTTPServer(("127.0.0.1", port), Model)
    server.daemon_threads = True
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
