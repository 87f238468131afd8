"""`vtrim hub serve` as a command in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import typer
from typer.testing import CliRunner

from vtrim_hf.cli_hub import hub as hub_commands
from vtrim_hf.local_hub import LocalHub

CHECKOUT = Path(__file__).resolve().parents[2]
COMMAND = """
import signal, typer
from vtrim_hf.cli_hub import hub
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
app = typer.Typer(pretty_exceptions_enable=False)
app.add_typer(hub)
app()
"""

pytestmark = [
    pytest.mark.newest,  # needs the standard library and typer
    pytest.mark.skipif(os.name != "posix", reason="stops with a signal"),
]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", COMMAND, "hub", *arguments]


def fails(*arguments: str) -> str:
    """Run a command that must end with 2, and return what it says."""
    app = typer.Typer()
    app.add_typer(hub_commands)
    done = CliRunner().invoke(app, ["hub", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    return " ".join(done.stderr.split())


@contextmanager
def serving(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command("serve", *arguments),
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def get(url: str, token: str) -> tuple[int, bytes]:
    try:
        with urlopen(Request(url, headers={"Authorization": f"Bearer {token}"})) as reply:
            return reply.status, reply.read()
    except HTTPError as error:
        with error:
            return error.code, b""


def test_it_serves_until_interrupted(tmp_path: Path) -> None:
    with LocalHub(tmp_path / "hub") as hub:
        token = hub.token
    with serving(str(tmp_path / "hub"), "--port", "0", "--no-xet", "--verbose") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip("\n") for _ in range(8)]
        endpoint = lines[0].split()[-1]
        assert lines[1].split()[-1] == token
        assert lines[3] == "namespace   user, as in user/my-draft"
        assert lines[5:] == [
            f"export HF_ENDPOINT={endpoint}",
            f"export HF_TOKEN={token}",
            "export HF_HUB_DISABLE_XET=1",
        ]
        status, body = get(f"{endpoint}/api/whoami-v2", token)
        assert (status, json.loads(body)["name"]) == (200, "user")
        assert get(f"{endpoint}/api/whoami-v2", "other")[0] == 401
        process.send_signal(signal.SIGINT)
        out, remarks = process.communicate(timeout=600)
    assert process.returncode == 0
    assert out == ""
    assert "GET /api/whoami-v2 200" in remarks
    assert "GET /api/whoami-v2 401" in remarks
    assert "stopped" in remarks
    assert "Traceback" not in remarks


def test_json_for_machines(tmp_path: Path) -> None:
    with serving(str(tmp_path / "hub"), "--port", "0", "--json") as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        assert facts["environment"] == {
            "HF_ENDPOINT": facts["endpoint"],
            "HF_TOKEN": facts["token"],
        }
        assert facts["namespace"] == "user"
        assert get(f"{facts['endpoint']}/api/models", facts["read_token"]) == (200, b"[]")
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 0


def test_a_hub_behind_a_proxy_is_reached_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "intra.example")
    with serving(str(tmp_path / "hub"), "--port", "0", "--json") as process:
        assert process.stdout is not None
        environment = json.loads(process.stdout.readline())["environment"]
    assert environment["NO_PROXY"] == "127.0.0.1,intra.example"


def test_a_busy_port(tmp_path: Path) -> None:
    with LocalHub(tmp_path / "hub") as hub:
        done = subprocess.run(
            command("serve", str(tmp_path / "other"), "--port", str(hub.port)),
            cwd=CHECKOUT, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (2, "")
        assert f"cannot listen on port {hub.port} of 127.0.0.1" in done.stderr
        assert "Traceback" not in done.stderr


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is a file: a hub needs a folder" in fails("serve", str(tmp_path / "file"))
    with LocalHub(tmp_path / "hub"):
        assert "in use by another hub" in fails("serve", str(tmp_path / "hub"), "--port", "0")
    assert "neither empty nor a hub's folder" in fails("serve", str(tmp_path), "--port", "0")
    new = str(tmp_path / "new")
    assert "cannot listen on port 99999" in fails("serve", new, "--port", "99999")
    assert "cannot listen on port 0 of 1.2.3.4" in fails(
        "serve", new, "--port", "0", "--host", "1.2.3.4"
    )
