"""The API reference: it builds, and nothing public is missing from it or has no docstring."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import vtrim_hf

pytestmark = pytest.mark.newest  # the same docstrings with every release

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "build_reference.py"


@pytest.fixture(scope="module")
def reference() -> Any:
    spec = importlib.util.spec_from_file_location("build_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_builds_and_holds_every_public_name(reference: Any, tmp_path: Path) -> None:
    reference.build(tmp_path)
    page = (tmp_path / "vtrim_hf.html").read_text(encoding="utf-8")
    assert 'id="TrimmedDraftForCausalLM.from_pretrained"' in page
    (tmp_path / "vtrim_hf.html").write_text(
        page.replace('id="TrimmedDraftForCausalLM.from_pretrained"', "")
    )
    assert reference.not_on_page(tmp_path) == ["vtrim_hf: TrimmedDraftForCausalLM.from_pretrained"]


def test_a_public_name_without_a_docstring_stops_it(
    reference: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nameless:
        """Says what it is, but not what it does."""

        def act(self) -> None: ...

    monkeypatch.setattr(vtrim_hf, "Nameless", Nameless, raising=False)
    monkeypatch.setattr(vtrim_hf, "__all__", [*vtrim_hf.__all__, "Nameless"])
    with pytest.raises(SystemExit, match=r"vtrim_hf\.Nameless\.act"):
        reference.build(tmp_path)
    assert not list(tmp_path.iterdir())
