"""A login that asks the guard before and after the password is verified."""

import json
import os
import sys
import urllib.request

PALISADE = os.environ.get("PALISADE", "http://127.0.0.1:8080")


def ask(step, **facts):
    """One guard command: `check`, `failure` or `success`."""
    url = f"{PALISADE}/v1/guard/login/{step}"
    request = urllib.request.Request(url, json.dumps(facts).encode())
    with urllib.request.urlopen(request, timeout=2) as answer:
        return json.load(answer)


def login(ip, account, device, password_is_right):
    facts = {"ip": ip, "account": account, "device": {"client_id": device}}
    before = ask("check", **facts)
    if before["decision"] != "allow":
        return 429, before["retry_after"]
    if not password_is_right:
        ask("failure", **facts)
        return 401, None
    ask("success", **facts)
    return 200, None


if __name__ == "__main__":
    ip, account, device, right = sys.argv[1:5]
    print(*login(ip, account, device, right == "right"))
