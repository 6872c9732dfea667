"""The page of the documentation does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest

from conftest import PATIENCE, Answered, Server, Site, free_url

DOCS = Path(os.environ.get("PALISADE_DOCS", Path(__file__).parents[3] / "docs"))


def unpack(folder: Path) -> dict[str, str]:
    """Writes every block with a name on its first line to a file of that name."""
    text = (DOCS / "python.md").read_text()
    blocks = dict(re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", text, re.M | re.S))
    assert len(re.findall(r"^```(?:python|toml)$", text, re.M)) == len(blocks), (
        "a block has no name"
    )
    for name, block in blocks.items():
        (folder / name).write_text(patient(name, block))
    return blocks


def patient(name: str, block: str) -> str:
    """A busy machine may need longer than the default deadline."""
    of_client, of_settings = '"http://127.0.0.1:8080"))', '"http://127.0.0.1:8080"),'
    block = block.replace(of_settings, f'{of_settings} "deadline": 30,')
    block = block.replace(of_client, f"{of_client[:-1]}, deadline=30)")
    assert ("127.0.0.1:8080" in block) == ("deadline" in block), name
    return block


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[Path, Server]]:
    blocks = unpack(tmp_path)
    (tmp_path / "server").mkdir()
    server = Server(tmp_path / "server", blocks["policy.toml"])
    yield tmp_path, server
    server.stop()


def environment(server: Server) -> dict[str, str]:
    return {**os.environ, "PALISADE": server.url, "PYTHONDONTWRITEBYTECODE": "1"}


@contextmanager
def started(folder: Path, server: Server, *command: str) -> Iterator[Site]:
    """A site that a command of the page starts."""
    port = free_url().rpartition(":")[2]
    given = [part.replace("PORT", port) for part in command]
    child = subprocess.Popen([sys.executable, *given], cwd=folder, env=environment(server))
    try:
        end = time.monotonic() + PATIENCE
        while True:
            assert child.poll() is None and time.monotonic() < end, "the site did not start"
            try:
                Site(int(port)).send("GET", "/")
                break
            except ConnectionError:
                time.sleep(0.02)
        yield Site(int(port))
    finally:
        child.kill()
        child.wait()


def sign_in(site: Site, username: str, password: str) -> Answered:
    form = urlencode({"username": username, "password": password})
    return site.send(
        "POST",
        "/session",
        form.encode(),
        Content_Type="application/x-www-form-urlencoded",
        X_Device="d1",
    )


def says(page: tuple[Path, Server], program: str) -> str:
    folder, server = page
    command = [sys.executable, program]
    return subprocess.check_output(command, cwd=folder, env=environment(server), text=True)


def test_ask(page: tuple[Path, Server]) -> None:
    assert says(page, "ask.py") == "allow 200 9\n"


def test_jobs(page: tuple[Path, Server]) -> None:
    assert says(page, "jobs.py").startswith("5 queued, come back in ")


def test_chat(page: tuple[Path, Server]) -> None:
    assert says(page, "chat.py") == "HELLO 812\n429 rate_limit_exceeded\n"


def test_doubles(page: tuple[Path, Server]) -> None:
    folder, _ = page
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_login.py"]
    assert "3 passed" in subprocess.check_output(command, cwd=folder, text=True)


def test_fastapi(page: tuple[Path, Server]) -> None:
    folder, server = page
    with started(folder, server, "-m", "uvicorn", "app:app", "--port", "PORT") as site:
        who = {"Authorization": "Bearer demo"}
        report = site.send("GET", "/reports/2026", **who)
        assert report.json() == {"report": "2026", "of": "acme"}
        assert report.headers["X-RateLimit-Limit"]
        assert site.send("GET", "/reports/2026", Authorization="Bearer x").status == 401
        assert sign_in(site, "ann", "correct horse").json() == {"welcome": True}
        assert sign_in(site, "n" * 600, "guess").json()["field"] == "account", "n3"
        assert sign_in(site, "umlaut", "größer").status == 401
        assert [sign_in(site, "bob", "guess").status for _ in range(2)] == [401, 401]
        assert sign_in(site, "bob", "correct horse").status == 429
        jobs = [site.send("POST", "/jobs", **who).status for _ in range(11)]
        assert jobs == [200] * 10 + [429]


def test_django(page: tuple[Path, Server]) -> None:
    folder, server = page
    env = {**environment(server), "DJANGO_SETTINGS_MODULE": "settings"}
    made = (
        "import django; django.setup()\n"
        "from django.core.management import call_command; call_command('migrate', verbosity=0)\n"
        "from django.contrib.auth.models import User\n"
        "User.objects.create_user('ann', password='correct horse')\n"
    )
    subprocess.run([sys.executable, "-c", made], cwd=folder, env=env, check=True)
    command = ["-m", "django", "runserver", "--noreload", "PORT", "--settings=settings"]
    with started(folder, server, *command) as site:
        welcome = sign_in(site, "ann", "correct horse")
        assert (welcome.status, welcome.body) == (200, b"welcome")
        cookie = str(welcome.headers["Set-Cookie"]).partition(";")[0]
        report = site.send("GET", "/reports/2026", Cookie=cookie)
        assert report.status == 200 and report.headers["X-RateLimit-Limit"]
        assert site.send("GET", "/reports/2026").status == 403, "n4"
        for name in ("", "n" * 600):
            refused = sign_in(site, name, "guess")
            assert (refused.status, refused.json()["field"]) == (400, "account"), "n3"
        assert [sign_in(site, "bob", "guess").status for _ in range(2)] == [401, 401]
        assert sign_in(site, "bob", "guess").status == 429
