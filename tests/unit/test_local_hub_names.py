"""Names that a local hub refuses, and what it imports."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import vtrim_hf.local_hub
from vtrim_hf.local_hub.safe_names import check_file_path, check_reference, check_repo_id

pytestmark = pytest.mark.newest  # a server of the standard library

PACKAGE = Path(vtrim_hf.local_hub.__file__).parent


@pytest.mark.parametrize("name", ["user/draft", "a/b", "team_1/SmolLM2-135M-sql.v2", "_x/y_"])
def test_a_usual_repository_is_taken(name: str) -> None:
    assert check_repo_id(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "draft", "a/b/c", "a/", "/b", "../b", "a/..", "a/.", "a/.hidden", "a/-x", "a/x-", "a/b..c",
        "a/b--c", "a\\b/c", "a/b c", "a/b.git", "a/b.lock", "a/b\n", "a/b\0", "a/" + "x" * 97,
        "a/é", "",
    ],
)  # fmt: skip
def test_an_odd_repository_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="NAMESPACE/NAME"):
        check_repo_id(name)


@pytest.mark.parametrize(
    "path", ["a", "a/b.txt", ".gitattributes", "vtrim/coverage.json", "é/ü x"]
)
def test_a_usual_path_is_taken(path: str) -> None:
    assert check_file_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "", "/etc/passwd", "../a", "a/../b", "a/..", "./a", "a//b", "a/", "..\\a", "a\\b", "C:/a",
        "a:b", "a\0b", "a\nb", ".git/config", "a/.GIT/x", "\ud800", "x" * 1001, None, 3, ["a"],
    ],
)  # fmt: skip
def test_a_tricky_path_is_refused(path: object) -> None:
    with pytest.raises(ValueError, match="path is"):
        check_file_path(path)


@pytest.mark.parametrize("name", ["main", "v1.0", "feature/x", "2026-01-01"])
def test_a_usual_reference_is_taken(name: str) -> None:
    assert check_reference(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "a b", "../x", "a..b", "refs/heads/x", "0" * 40, "-x", "a//b", "x/", "x.lock", None],
)
def test_an_odd_reference_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="a branch or tag"):
        check_reference(name)


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_only_the_standard_library_is_imported(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            roots = {alias.name.split(".")[0] for alias in node.names}
            assert roots <= sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom):
            standard = (node.module or "").split(".")[0] in sys.stdlib_module_names
            assert node.level == 1 or (node.level == 0 and standard)
