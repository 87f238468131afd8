"""One run a folder at a time, and a lock that a kill gives back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vtrim_hf.run_lock import LOCK_FILE, RunLock

pytestmark = pytest.mark.newest  # folders and locks, no dependency is called

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from vtrim_hf.run_lock import RunLock
with RunLock(Path({folder!r})):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    code = HOLD.format(root=str(ROOT), folder=str(tmp_path / "run"))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with (
            pytest.raises(ValueError, match=f"process {process.pid}") as caught,
            RunLock(tmp_path / "run"),
        ):
            pass
        assert "--run-folder" in str(caught.value)
        with (
            pytest.raises(ValueError, match="or name another place"),
            RunLock(tmp_path / "run", "place"),
        ):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    with RunLock(tmp_path / "run"):
        pass


def test_it_is_given_back_after_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with RunLock(tmp_path):
            assert (tmp_path / LOCK_FILE).read_text("utf-8") == f"{os.getpid()}\n"
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with RunLock(tmp_path):
        pass
