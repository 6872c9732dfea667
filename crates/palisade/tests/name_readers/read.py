"""Reads bodies as Flask and Django applications do, and as plain WSGI ones with urllib.

One case a line on stdin, one array a line on stdout: every text that an application could
take for the name. A body that is refused names nobody.
"""

import io
import json
import sys
from urllib.parse import parse_qs

import django
from django.conf import settings
from django.core.handlers.wsgi import WSGIRequest
from werkzeug.wrappers import Request

settings.configure(DEFAULT_CHARSET="utf-8", ALLOWED_HOSTS=["*"])
django.setup()


def leaves(value):
    if isinstance(value, str):
        return [value]
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, (int, float)):
        return [str(value)]
    if isinstance(value, dict):
        value = list(value.values())
    return [text for item in value for text in leaves(item)]


def member(value, path):
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return []
        value = value[name]
    return leaves(value)


def environ(case, body):
    return {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": "/login",
        "SCRIPT_NAME": "",
        "SERVER_NAME": "app",
        "SERVER_PORT": "80",
        "wsgi.url_scheme": "http",
        "QUERY_STRING": case["query"],
        "CONTENT_TYPE": case["type"],
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
    }


def flask(case, body):
    request = Request(environ(case, body))
    if case["type"] == "application/json":
        return member(request.get_json(), case["path"])
    return request.values.getlist(case["field"]) + request.form.getlist(case["field"])


def flask_query(case, body):
    return Request(environ(case, body)).args.getlist(case["field"])


def django_form(case, body):
    request = WSGIRequest(environ(case, body))
    if case["type"] == "application/json":
        return member(json.loads(request.body), case["path"])
    return request.POST.getlist(case["field"])


def django_query(case, body):
    return WSGIRequest(environ(case, body)).GET.getlist(case["field"])


def plain(case, body):
    found = parse_qs(case["query"]).get(case["field"], [])
    if case["type"] == "application/x-www-form-urlencoded":
        found += parse_qs(body.decode("utf-8", "ignore")).get(case["field"], [])
    return found


READERS = [flask, flask_query, django_form, django_query, plain]


def attempt(reader, case, body):
    try:
        return reader(case, body)
    except Exception:
        return []


for line in sys.stdin:
    case = json.loads(line)
    body = case["body"].encode("latin-1")
    print(json.dumps([text for reader in READERS for text in attempt(reader, case, body)]))
