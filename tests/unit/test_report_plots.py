"""Drawings inside a page: text that is text, the page's own colours, ids of their own."""

from __future__ import annotations

import re
import warnings
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest

from published_facts import make_report
from report_samples import make_search, training
from vtrim_hf.report_blocks import Block, Notes, Plot
from vtrim_hf.report_drawing import SERIES, draw
from vtrim_hf.report_plots import (
    domains_plot,
    front_plot,
    parts_plot,
    positions_plot,
    size_plot,
    speed_plot,
    training_plot,
)
from vtrim_hf.search_result import SearchResult


@pytest.fixture(scope="module")
def search() -> SearchResult:
    return make_search()


def root_of(block: Block) -> ElementTree.Element:
    assert isinstance(block, Plot), block
    return ElementTree.fromstring(block.svg)


def words_in(block: Block) -> str:
    root = root_of(block)
    return " | ".join("".join(e.itertext()) for e in root.iter("text"))


def all_plots(search: SearchResult) -> list[Block]:
    report, told = make_report(30), training()
    spread = {"median": 2.0, "low": 1.5, "high": 2.5}
    lines = {"training": told["curve"], "held out": told["evaluations"]}
    return [
        front_plot("a", search, "operations"),
        size_plot("b", search),
        domains_plot("c", search),
        speed_plot("d", {"draft": spread}, "plain"),
        parts_plot("e", report),
        positions_plot("f", {"draft": [0.5, 0.25], "full": [0.25]}),
        training_plot("g", "Length", "acceptance_length", "length", lines, 50),
    ]


def test_each_is_named_and_belongs_to_the_page(search: SearchResult) -> None:
    ids: list[str] = []
    for block in all_plots(search):
        root = root_of(block)
        assert isinstance(block, Plot)
        assert root.attrib["role"] == "img"
        assert {"width", "height"}.isdisjoint(root.attrib)
        named = [e.text for e in root if e.tag in ("title", "desc")]
        assert named == [block.title, block.words]
        assert block.words
        assert len(list(root.iter("text"))) > 3
        assert "#a1000" not in block.svg
        assert "#a2000" not in block.svg
        # Whatever is left of colours that the page cannot turn is a fault on dark ground.
        assert not re.findall(r"#[0-9a-f]{6}\b", block.svg), block.title
        assert {"style", "script", "metadata", "image"}.isdisjoint(e.tag for e in root.iter())
        ids += [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
        for used in re.findall(r"url\(#([^)]+)\)", block.svg):
            assert used in ids
        for element in root.iter():
            if "href" in element.attrib:
                assert element.attrib["href"].removeprefix("#") in ids
    assert len(ids) == len(set(ids))


def test_search_plots_say_what_was_chosen(search: SearchResult) -> None:
    said = words_in(front_plot("a", search, "operations"))
    for wanted in (
        f"chosen: {search.k:,} ids",
        "usual: 32,000 ids",
        "least: 90.0 %",
        "Pareto front",
        "misses a floor",
        "operations of a draft step saved, %",
    ):
        assert wanted in said, wanted
    said = words_in(size_plot("b", search))
    assert "kept ids (logarithmic)" in said
    assert "1,000" in said
    said = words_in(domains_plot("c", search))
    assert "sql" in said
    assert "chat" in said


def test_speed_and_acceptance() -> None:
    report = make_report(30)
    spread = {"median": 2.0, "low": 1.5, "high": 2.5}
    block = speed_plot("d", {"draft": spread, "full": spread}, "plain float32")
    assert "2.00x" in words_in(block)
    assert "times the speed of plain float32" in words_in(block)
    assert isinstance(block, Plot)
    assert block.words == "draft 2.00 (1.50 to 2.50); full 2.00 (1.50 to 2.50)"
    said = words_in(parts_plot("e", report))
    assert "draft head" in said
    assert "verification" in said
    assert "milliseconds a new token" in said


def test_the_kept_checkpoint_is_marked() -> None:
    told = training()
    lines = {"training": told["curve"], "held out": told["evaluations"]}
    said = words_in(training_plot("g", "L", "acceptance_length", "length", lines, 50))
    assert "kept" in said
    assert "kept" not in words_in(training_plot("g", "L", "loss", "loss", lines))


def test_points_without_the_figure_are_left_out() -> None:
    points: Any = [
        {"tokens": 10, "loss": None},
        {"tokens": None, "loss": 1.0},
        {"tokens": 20, "loss": 5.0},
        {"tokens": 30, "loss": float("nan")},
        {"tokens": 40, "loss": 3.0},
    ]
    block = training_plot("g", "L", "loss", "loss", {"training": points, "none": []})
    assert isinstance(block, Plot)
    assert block.words == "loss over the tokens read; training: from 5 to 3."


@pytest.mark.parametrize(
    "name", ["$x_$", "_hidden", "</text><script>x</script>", "漢字", "a\u202eb", "x" * 90]
)
def test_names_are_text(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        block = positions_plot("k", {name: [0.5, 0.4], f"{name}2": [0.4, 0.3]})
    root = root_of(block)
    assert not list(root.iter("script"))
    said = [e.text or "" for e in root.iter("text")]
    wanted = name if len(name) < 28 else "x" * 27 + "…"
    wanted = {"a\u202eb": "a\\u202eb"}.get(name, wanted)
    assert any(wanted[:27] in one for one in said), said


def test_two_long_names_stay_two_bars() -> None:
    spread = {"median": 2.0, "low": 1.5, "high": 2.5}
    said = words_in(speed_plot("d", {"x" * 40 + "1": spread, "x" * 40 + "2": spread}, "plain"))
    assert said.count("xxx…") == 2
    assert "… (2)" in said


def test_the_same_figures_give_the_same_drawing(search: SearchResult) -> None:
    first = [block.svg for block in all_plots(search) if isinstance(block, Plot)]
    with matplotlib.rc_context({"axes.edgecolor": "red", "font.size": 30, "svg.fonttype": "path"}):
        again = [block.svg for block in all_plots(search) if isinstance(block, Plot)]
        assert matplotlib.rcParams["font.size"] == 30
    assert first == again


def test_what_cannot_be_drawn_is_said() -> None:
    def paint(axes: Any) -> None:
        axes.plot([1, 2], [1, 2], color=SERIES[0])
        raise ValueError("no such <figure>")

    assert draw("k", "T", "w", paint) == Notes("T", ("This could not be drawn: no such <figure>",))
