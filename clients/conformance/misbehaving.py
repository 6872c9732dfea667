"""Servers that answer as Palisade never should, and one that allows and remembers.

Prints one line of JSON, each server's name with its address, and ends with its standard
input. Standard library only: the tests of every client start it.
"""

import asyncio
import json
import socket
import sys

PATIENCE = 60.0
LARGE = 20 << 20


class Question:
    """A request with its JSON body."""

    def __init__(self, head, body, connection):
        line, *headers = head.decode("latin-1").split("\r\n")
        self.method, self.path = line.split(" ")[:2]
        pairs = (header.partition(":") for header in headers if header)
        self.headers = {name.lower(): value.strip() for name, _, value in pairs}
        self.body = json.loads(body) if body else {}
        self.connection = connection

    def seen(self):
        return {
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            "body": self.body,
            "connection": self.connection,
        }


async def question(reader, connection):
    head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
    asked = Question(head, b"", connection)
    body = await reader.readexactly(int(asked.headers.get("content-length", "0")))
    return Question(head, body, connection)


def http(value, status=200, more=""):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def allowed(asked, **more):
    return {"decision": "allow", "status": 200, "request_id": asked.body.get("request_id"), **more}


def replies(reply):
    """A server that answers each question with `reply(question)`, or hangs up without one."""

    async def serve(reader, writer, connection):
        while True:
            answer = reply(await question(reader, connection))
            if answer is None:
                return
            writer.write(answer)
            await writer.drain()

    return serve


class Recorder:
    """Allows everything and remembers it; `GET /asked` tells. The questions whose number is
    in `deaf` are taken and not answered."""

    def __init__(self, deaf=()):
        self.asked, self.deaf = [], deaf

    def __call__(self, asked):
        if asked.path == "/asked":
            return http(self.asked)
        self.asked.append(asked.seen())
        return None if len(self.asked) in self.deaf else http(allowed(asked))


async def silent(reader, writer, connection):
    await asyncio.sleep(PATIENCE)


async def drip(reader, writer, connection):
    for byte in http(allowed(await question(reader, connection))):
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.25)


async def garbage(reader, writer, connection):
    await question(reader, connection)
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    await writer.drain()


async def large(reader, writer, connection):
    asked = await question(reader, connection)
    padding = json.dumps(allowed(asked, padding="x" * LARGE)).encode()
    writer.write(http(padding))
    await writer.drain()


async def once(reader, writer, connection):
    """One answer for each connection, without saying that it is the last."""
    writer.write(http(allowed(await question(reader, connection))))
    await writer.drain()


SERVERS = {
    "silent": silent,
    "drip": drip,
    "garbage": garbage,
    "large": large,
    "once": once,
    "hangs_up": replies(lambda asked: None),
    "recorder": replies(Recorder()),
    "jobs": replies(Recorder()),
    "kept": replies(Recorder()),
    "tokens": replies(Recorder()),
    "deaf_once": replies(Recorder(deaf=(2,))),
    "error": replies(lambda asked: http({"detail": "broken"}, 500)),
    "redirect": replies(
        lambda asked: http(allowed(asked), 302, "Location: http://127.0.0.1:1/\r\n")
    ),
    "not_json": replies(lambda asked: http(b"allow")),
    "a_list": replies(lambda asked: http([allowed(asked)])),
    "another_id": replies(lambda asked: http(allowed(asked, request_id="another"))),
    "unknown_decision": replies(lambda asked: http(allowed(asked, decision="alow"))),
    "no_status": replies(lambda asked: http(allowed(asked, status=None))),
    "delays": replies(lambda asked: http(allowed(asked, delay_ms=400))),
}


def playing(serve):
    connections = 0

    async def handle(reader, writer):
        nonlocal connections
        connections += 1
        try:
            await serve(reader, writer, connections)
        except (EOFError, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    return handle


def away():
    """An address where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


async def main():
    urls = {"away": away(), "unknown_name": "http://palisade.invalid:8080"}
    for name, serve in SERVERS.items():
        server = await asyncio.start_server(playing(serve), "127.0.0.1", 0, limit=1 << 20)
        urls[name] = "http://127.0.0.1:%d" % server.sockets[0].getsockname()[1]
    print(json.dumps(urls), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
