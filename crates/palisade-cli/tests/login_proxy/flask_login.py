"""A login as many Flask applications have it: a form, and a redirect either way."""

import os

from flask import Flask, redirect, request, session
from werkzeug.security import check_password_hash, generate_password_hash
from werkzeug.serving import make_server

app = Flask(__name__)
app.secret_key = os.urandom(16)
USERS = {
    name: generate_password_hash(password, "pbkdf2:sha256:1")
    for name, password in [("ann@example.com", "right")]
}
verified = 0


@app.get("/login")
def form():
    wrong = "<p>error</p>" if "error" in request.args else ""
    return wrong + '<form method=post><input name=email><input name=password type=password></form>'


@app.post("/login")
def login():
    global verified
    verified += 1
    stored = USERS.get(request.form["email"].strip().lower())
    if stored and check_password_hash(stored, request.form["password"]):
        session["user"] = request.form["email"]
        return redirect("/home")
    return redirect("/login?error=1")


@app.get("/home")
def home():
    return "welcome " + session["user"] if "user" in session else redirect("/login")


@app.get("/verified")
def count():
    return str(verified)


server = make_server("127.0.0.1", 0, app, threaded=True)
print(server.port, flush=True)
server.serve_forever()
