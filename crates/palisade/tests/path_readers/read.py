"""Reads request targets, one JSON string a line, as Python programs do.

urllib alone, the standard library's HTTP server, WSGI (wsgiref) and an ASGI server
(uvicorn, over a socket). Answers one JSON array a line; null where the target is refused.
"""

import asyncio
import io
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlparse, urlsplit

import uvicorn


def split(target):
    return unquote(urlsplit(target).path)


def parsed(target):
    return unquote(urlparse(target).path)


class Handler(BaseHTTPRequestHandler):
    """Only its parser, on bytes that are at hand."""

    def __init__(self, target):
        self.rfile = io.BytesIO(b"\r\n")
        self.raw_requestline = f"GET {target} HTTP/1.1\r\n".encode("latin-1")
        self.refused = not self.parse_request()

    def send_error(self, *_):
        pass


def served(target):
    handler = Handler(target)
    return None if handler.refused else handler.path


def http_server(target):
    path = served(target)
    return path and unquote(urlsplit(path).path)


def wsgi(target):
    path = served(target)
    # PEP 3333: bytes as latin-1, which applications turn back.
    told = path and unquote(path.partition("?")[0], "latin-1")
    return told and told.encode("latin-1").decode("utf-8", "replace")


class Asgi:
    """A real server; its application answers with the path that it was told."""

    def __init__(self):
        config = uvicorn.Config(self.application, port=0, log_config=None, lifespan="off")
        self.server = uvicorn.Server(config)
        threading.Thread(target=self.server.run, daemon=True).start()
        while not (self.server.started and self.server.servers):
            pass
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    @staticmethod
    async def application(scope, _receive, send):
        body = json.dumps(scope["path"]).encode()
        length = str(len(body)).encode()
        headers = [(b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def ask(self, targets):
        answers = []
        reader = writer = None
        for target in targets:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(f"GET {target} HTTP/1.1\r\nhost: app\r\n\r\n".encode("latin-1"))
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await reader.readexactly(int(lengths[0].split(b":")[1]))
            answers.append(json.loads(body) if status == 200 else None)
            if status != 200:
                writer.close()
                writer = None
        return answers


def main():
    targets = [json.loads(line) for line in sys.stdin]
    asgi = asyncio.run(Asgi().ask(targets))
    for target, path in zip(targets, asgi):
        row = [split(target), parsed(target), http_server(target), wsgi(target), path]
        print(json.dumps(row))


main()
