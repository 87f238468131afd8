"""What a user installs: the package, its type marker and its card files, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.newest  # needs hatchling alone

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("cards", [True, False], ids=["with-cards", "no-cards"])
def test_wheel_holds_the_package_and_its_cards(tmp_path: Path, cards: bool) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    shutil.copytree(
        ROOT / "vtrim_hf", source / "vtrim_hf", ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    (source / "README.md").write_text("# vtrim_hf\n")
    if cards:
        (source / "hub_cards" / "schemas").mkdir(parents=True)
        (source / "hub_cards" / "schemas" / "coverage.json").write_text("{}")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source],
        check=True,
        capture_output=True,
    )
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        (scripts,) = (n for n in archive.namelist() if n.endswith("/entry_points.txt"))
        assert "License-Expression: Apache-2.0" in archive.read(metadata).decode()
        assert "vtrim = vtrim_hf.cli:main" in archive.read(scripts).decode()
    expected = {path.relative_to(source).as_posix() for path in (source / "vtrim_hf").rglob("*.*")}
    assert "vtrim_hf/py.typed" in expected
    assert names == expected | ({"vtrim_hf/hub_cards/schemas/coverage.json"} if cards else set())
