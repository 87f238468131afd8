"""How the command takes a kill, in the foreground and as a background job of a script."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.newest  # needs the standard library

WAITING = """
import signal, sys, time
if sys.argv[1] == "background":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what a script's shell does to `command &`
from vtrim_hf import cli

def wait():
    try:
        print("ready", flush=True)
        time.sleep(120)
    except KeyboardInterrupt:
        print("cleaned up")

cli.app = wait
cli.main()
"""


@pytest.mark.parametrize("place", ["foreground", "background"])
def test_a_polite_kill_cleans_up(place: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, place], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert told == "cleaned up\n"
