"""Names of branches and tags: those that git takes, here and on a local hub alike."""

from __future__ import annotations

import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from vtrim_hf.hub_account import check_reference
from vtrim_hf.local_hub import safe_names

GOOD = ["main", "v1.0", "a/b", "v@1", "é", "x#1", "1", "a-b", "a.b/c.d", "@x", "x" * 250]
BAD = [
    "", " ", "v 1", "a\tb", "a\n", "a~1", "a^", "a:b", "a?", "a*", "a[b", "a\\b", "a..b", "a//b",
    "/a", "a/", ".a", "a/.b", "a.lock", "a.lock/b", "a.", "a@{b", "@", "a\x7f",
]  # fmt: skip
OURS_ALONE = ["-a", "HEAD", "x" * 251, "refs/heads/x", "0" * 40, "a\u2028b"]


@pytest.mark.parametrize("what", ["revision", "tag"])
def test_names_that_pass(what: str) -> None:
    check_reference(None, what)
    for name in GOOD:
        check_reference(name, what)
        assert safe_names.check_reference(name) == name


@pytest.mark.parametrize("name", [*BAD, *OURS_ALONE, 3, b"x"])
def test_names_that_do_not(name: Any) -> None:
    with pytest.raises(ValueError, match="tag must be "):
        check_reference(name, "tag")
    with pytest.raises(ValueError, match="a branch or tag"):
        safe_names.check_reference(name)


@pytest.mark.skipif(which("git") is None, reason="asks git")
def test_git_says_the_same(tmp_path: Path) -> None:
    for name in [*GOOD, *BAD]:
        done = subprocess.run(
            ["git", "check-ref-format", f"refs/tags/{name}"], cwd=tmp_path, check=False
        )
        # As the last part of a longer name `@` alone passes, as a name of its own it does not.
        assert (done.returncode == 0) == (name in GOOD or name == "@"), name
