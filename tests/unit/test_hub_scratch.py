"""Folders of killed processes are removed, those of living ones and of others are not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from vtrim_hf.hub_scratch import PREFIX, remove_abandoned, scratch_folder

pytestmark = [
    pytest.mark.newest,  # folders and locks, no dependency is called
    pytest.mark.skipif(os.name != "posix", reason="locks of this kind are POSIX"),
]

CHECKOUT = Path(__file__).resolve().parents[2]
_HOLD = """
import sys
from vtrim_hf.hub_scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "weights").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def folders(place: Path) -> list[str]:
    return sorted(found.name for found in place.glob(f"{PREFIX}*"))


def test_it_is_empty_and_gone_afterwards(tmp_path: Path) -> None:
    with scratch_folder() as folder:
        assert folder.parent.parent == tmp_path
        assert not [*folder.iterdir()]
        (folder / "x").mkdir()
    assert not [*tmp_path.iterdir()]


def test_only_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _HOLD],
        cwd=CHECKOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip()).parent
        with scratch_folder() as mine:
            assert (theirs / "work" / "weights").is_file(), "its process lives"
            remove_abandoned(tmp_path)
            assert mine.is_dir()
        process.kill()
    assert folders(tmp_path) == [theirs.name]
    with scratch_folder():
        assert not theirs.exists()


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere)
    (tmp_path / f"{PREFIX}without-a-lock").mkdir()
    (tmp_path / f"{PREFIX}file").touch()
    before = folders(tmp_path)
    remove_abandoned(tmp_path)
    assert folders(tmp_path) == before
    assert (elsewhere / "lock").is_file()
