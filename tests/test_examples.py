"""The examples run as they stand, are short, and leave nothing in the checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# By name, with what makes it short where it would take minutes.
EXAMPLES = {
    "00_speed_up_generate.py": (),
    "01_count_and_search.py": (),
    "02_trim_and_generate.py": (),
    "03_publish_and_load.py": (),
    # So few minutes that the target's states alone take them, as on a slow machine.
    "04_train_eagle_draft.py": ("--steps", "2", "--answers", "32", "--minutes", "0.01"),
}
LONGEST_EXAMPLE = 60
WIKISQL = ROOT / "examples" / "data" / "wikisql"
SHIPPED = ROOT / "examples" / "drafts" / "smollm2_wikisql"


def run(script: Path, folder: Path, *arguments: str) -> str:
    """Run a script in an empty folder, warnings being errors, and return what it printed."""
    process = subprocess.run(
        [sys.executable, "-W", "error", str(script), *arguments],
        cwd=folder,
        # The one Hub that an example may talk to is its own, behind no proxy.
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
        | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_the_list_is_complete() -> None:
    numbered = {path.name for path in (ROOT / "examples").glob("[0-9]*.py")}
    assert numbered == set(EXAMPLES)


# On the oldest releases one example is enough: that it runs there.
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n[:2] == "02" else [pytest.mark.newest]) for n in EXAMPLES],
)
def test_example(name: str, tmp_path: Path, smollm2_tokenizer: object) -> None:
    script = ROOT / "examples" / name
    lines = script.read_text(encoding="utf-8").splitlines()
    assert len(lines) < LONGEST_EXAMPLE
    if name.startswith("00") and not SHIPPED.is_dir():
        pytest.skip("the draft that comes with the repository is not there")
    said = run(script, tmp_path, *EXAMPLES[name])
    assert said.strip()
    assert "DIFFERENT" not in said
    assert ("minutes in all" in said) == name.startswith("04")


@pytest.mark.newest
@pytest.mark.parametrize("which", [0, 1])
def test_readme_example(which: int, tmp_path: Path, smollm2_tokenizer: object) -> None:
    """The first two Python blocks of the README, run where the data of a checkout lie."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) > which, "README.md shows too few Python examples"
    assert "@@" not in text, "README.md has a place that was never filled in"
    code = blocks[which]
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "readme.py").write_text(code, encoding="utf-8")
    run(tmp_path / "readme.py", tmp_path)


@pytest.mark.parametrize(("name", "rows"), [("train", 1100), ("test", 100)])
def test_bundled_domain_has_one_query_a_row(name: str, rows: int) -> None:
    lines = (WIKISQL / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == rows
    for line in lines:
        user, assistant = json.loads(line)["messages"]
        assert (user["role"], assistant["role"]) == ("user", "assistant")
        assert re.search(r"\n\nTable: .+\nColumns: .+\nQuestion: .+", user["content"])
        assert assistant["content"].startswith("SELECT ")


def test_bundled_domain_keeps_its_parts_apart() -> None:
    train, test = ((WIKISQL / f"{name}.jsonl").read_text("utf-8") for name in ("train", "test"))
    assert not set(train.splitlines()) & set(test.splitlines())
