"""The picture of a search: written whole, in any format, for every kind of result."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.image import imread

from search_samples import step, zipf
from vtrim_hf.search import search_vocabulary
from vtrim_hf.search_result import SearchResult
from vtrim_hf.token_counts import TokenCounts


def texts(path: Path) -> str:
    """All text of an SVG, which matplotlib keeps in comments beside the outlines."""
    return path.read_text("utf-8")


@pytest.fixture(scope="module")
def result() -> SearchResult:
    counts = TokenCounts.merge(
        TokenCounts.from_counts(zipf(40_000, seed=1), heldout=zipf(40_000), domain="sql"),
        TokenCounts.from_counts(zipf(40_000, 200, seed=2), domain="chat"),
    )
    return search_vocabulary(counts, step(40_000), min_coverage=0.9, domain_floors={"sql": 0.95})


def test_png(result: SearchResult, tmp_path: Path) -> None:
    path = result.plot(tmp_path / "new" / "search.png")
    assert path == tmp_path / "new" / "search.png"
    image = imread(path)
    assert image.shape[0] > 500
    assert image.std() > 0.05  # not blank
    assert [p.name for p in path.parent.iterdir()] == ["search.png"]


def test_says_what_was_chosen(result: SearchResult, tmp_path: Path) -> None:
    text = texts(result.plot(tmp_path / "search.svg"))
    ElementTree.fromstring(text)
    for wanted in (
        f"chosen: {result.k:,} tokens, {result.coverage:.2%} covered",
        "usual size: 32,000 tokens",
        "least coverage 90.0%",
        "held-out part",
        "misses a floor",
        "sql",
        "chat",
        "operations saved",
        f"{result.k:,} of 40,000 tokens",
    ):
        assert wanted in text, wanted


def test_own_title(result: SearchResult, tmp_path: Path) -> None:
    text = texts(result.plot(tmp_path / "search.svg", title="Our SQL draft"))
    assert "Our SQL draft" in text


def test_loaded_result_draws_the_same_points(result: SearchResult, tmp_path: Path) -> None:
    result.save(tmp_path / "result.json")
    again = SearchResult.load(tmp_path / "result.json")
    text = texts(again.plot(tmp_path / "again.svg"))
    assert f"chosen: {result.k:,} tokens" in text


@pytest.mark.parametrize("kind", ["one-domain", "one-size", "empty-domain"])
def test_odd_results(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {}
    counts = TokenCounts.from_counts(zipf())
    if kind == "one-size":
        options = {"k_min": 70, "k_max": 70}
    if kind == "empty-domain":
        empty = TokenCounts.from_counts(zipf() * 0, domain="empty")
        counts = TokenCounts.merge(counts, empty)
    path = search_vocabulary(counts, step(5000), **options).plot(tmp_path / "odd.svg")
    assert ("no tokens" in texts(path)) == (kind == "empty-domain")


def test_unknown_ending(result: SearchResult, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in one of .*png.*, got .*search\.docx"):
        result.plot(tmp_path / "search.docx")
    assert not list(tmp_path.iterdir())


def test_leaves_pyplot_alone(result: SearchResult, tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    result.plot(tmp_path / "search.png")
    assert plt.get_fignums() == before
