"""A login that asks the guard before and after the password is verified.

With nothing but the standard library; `palisade-client` does all of it in three lines.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request

PALISADE = os.environ.get("PALISADE", "http://127.0.0.1:8080")


def ask(step, **facts):
    """One guard command: `check`, `failure` or `success`."""
    url = f"{PALISADE}/v1/guard/login/{step}"
    request = urllib.request.Request(url, json.dumps(facts).encode())
    with urllib.request.urlopen(request, timeout=2) as answer:
        return json.load(answer)


def login(ip, username, device, password_is_right):
    facts = {
        "ip": ip,
        "account": username.lower(),
        "username": username,
        "device": {"client_id": device},
    }
    try:
        before = ask("check", **facts)
    except urllib.error.HTTPError as refused:
        return (400 if refused.code in (400, 413) else 503), None  # a name that cannot be one
    except OSError:
        return 503, None  # nobody can be asked: no password is verified
    if before["decision"] != "allow":
        return 429, before["retry_after"]
    outcome = "success" if password_is_right else "failure"
    try:
        after = ask(outcome, **facts, request_id=before["request_id"])
    except OSError:
        after = {}  # the attempt still weighs for 15 s
    if password_is_right:
        return 200, None
    time.sleep(after.get("delay_ms", 0) / 1000)
    return 401, None


if __name__ == "__main__":
    ip, username, device, right = sys.argv[1:5]
    print(*login(ip, username, device, right == "right"))
