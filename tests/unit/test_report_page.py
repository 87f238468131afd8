"""The page: what it holds of each file, that nothing in it runs, and what it says of gaps."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from published_facts import make_report
from report_samples import (
    Page,
    hostile,
    make_folder,
    make_search,
    training,
    write_json,
)
from search_samples import zipf
from vtrim_hf import build_report, report_page
from vtrim_hf.decode_report import DecodeReport
from vtrim_hf.decoding_model import DecodingModel
from vtrim_hf.latency import LatencyModel
from vtrim_hf.report_page import PAGE, make_page
from vtrim_hf.search import search_vocabulary
from vtrim_hf.search_result import SearchResult
from vtrim_hf.token_counts import TokenCounts

pytestmark = pytest.mark.newest  # text of our own; its drawings are test_report_plots.py's


@pytest.fixture(scope="module")
def search() -> SearchResult:
    return make_search()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, search: SearchResult) -> Path:
    """A folder with a file of each kind and its page; copy it before anything is changed."""
    folder = make_folder(tmp_path_factory.mktemp("whole") / "my run", search)
    assert build_report(folder) == folder / PAGE
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "my run"))


def read(path: Path) -> Page:
    page = Page(path.read_text("utf-8"))
    page.check_harmless()
    return page


def titles(folder: Path) -> list[str]:
    return [section.title for section in make_page(folder).sections]


def test_holds_every_part(whole: Path, search: SearchResult) -> None:
    page = read(whole / PAGE)
    assert titles(whole) == [
        "Search",
        "Training",
        "Measurement",
        "Draft",
        "Text: bench/report.md",
        "Picture: bench/report.png",
        "Figures: bench/figures.json",
    ]
    assert page.tags["svg"] == 3 + 3 + 3 + 2
    assert page.tags["img"] == 1
    for caption in (
        "What was chosen",
        "Coverage by domain",
        "Some of the sizes",
        "How it was trained",
        "Evaluations on held-out conversations",
        "Acceptance by position, share of the drafts",
        "Speed",
        "Drafting",
        "Time by part, milliseconds a new token",
        "Tokens most missed, outside of the vocabulary",
        "Machine",
        "How it was measured",
        "What was run",
        "The draft",
        "over plain",
        "deep / one / two / three",
    ):
        assert caption in page.tables, (caption, list(page.tables))
    for source in ("search/search.json", "draft/training_report.json", "bench/figures.json"):
        assert source in page.text
    assert "of the model itself" not in page.text
    assert "Nothing: all parts are here." in page.text


def test_figures_have_units_and_intervals(whole: Path, search: SearchResult) -> None:
    tables = read(whole / PAGE).tables
    chosen = {row[0]: row[1] for row in tables["What was chosen"]}
    low, high = search.coverage_interval
    assert chosen["kept ids"].startswith(f"{search.k:,} of 40,000 (")
    assert chosen["coverage, search part"] == f"{100 * search.coverage:.2f} %"
    assert chosen["95 % interval"] == f"{100 * low:.2f} to {100 * high:.2f}"
    assert chosen["latency counted in"] == "FLOP"
    by_domain = {row[0]: row for row in tables["Coverage by domain"]}
    assert set(by_domain) == {"domain", "sql", "chat"}
    assert by_domain["sql"][7] == "95.0 %"
    report = make_report(30)
    speed = {row[0]: row for row in tables["Speed"]}
    spread = report.speedup, report.draft.speedup.low, report.draft.speedup.high
    assert speed["draft"][1] == "30"
    assert speed["draft"][4:6] == [f"{spread[0]:.2f}", f"{spread[1]:.2f} to {spread[2]:.2f}"]
    missed = tables["Tokens most missed, outside of the vocabulary"]
    assert missed[1:] == [["40", '" zebra"', " 7", "0.700 %"]]
    assert {row[0]: row[1] for row in tables["Machine"]}["cpu"] == "Test CPU"


def test_missed_tokens_of_a_measurement(folder: Path) -> None:
    shutil.rmtree(folder / "draft")
    page = read(build_report(folder))
    missed = page.tables["Tokens most missed, outside of the vocabulary"]
    assert missed[1][:2] == ["40", '"|x"']
    assert missed[2][:2] == ["41", '"\\n`"']
    absent = page.tables["Parts that no file tells of"]
    assert [row[:2] for row in absent[1:]] == [["training curves", "no training is here"]]


def test_a_search_for_throughput(tmp_path: Path) -> None:
    here = zipf()
    there = np.random.default_rng(1).binomial(here, 0.2)
    result = search_vocabulary(
        TokenCounts.from_counts(here, heldout=there),
        LatencyModel(5000, "measured", "s", {"body": 0.001}, (0, 5000), (0.0, 0.004)),
        objective="throughput",
        decoding=DecodingModel((0.8, 0.75), {1: 0.030, 9: 0.036}),
        progress=False,
    )
    assert result.expected is not None
    result.save(tmp_path / "search.json")
    page = read(build_report(tmp_path))
    assert "Expected speed-up by size" in page.text
    rows = {row[0]: row for row in page.tables["Expected speed"]}
    chosen = result.expected["chosen"]
    assert rows["chosen"][1:3] == [f"{result.k:,}", str(result.draft_length)]
    assert rows["chosen"][6] == f"{chosen['heldout']['speedup']:.3f}"
    assert rows["full"][1] == "5,000"
    assert "on the held-out part" in page.text
    facts = {row[0]: row[1] for row in page.tables["What was chosen"]}
    assert facts["advice"] == result.expected["advice"]


def test_commands_are_shown(whole: Path) -> None:
    assert "python bench.py --prompts 24" in read(whole / PAGE).text


def test_the_same_files_give_the_same_page(whole: Path, tmp_path: Path) -> None:
    first = (whole / PAGE).read_bytes()
    assert build_report(whole).read_bytes() == first, "the page is no part of what it tells of"
    other = tmp_path / "elsewhere" / "deep" / "page.html"
    assert build_report(whole, other) == other
    assert other.read_bytes() == first
    program = "import sys; from vtrim_hf import build_report; build_report(*sys.argv[1:])"
    subprocess.run(
        [sys.executable, "-c", program, whole, tmp_path / "third.html"],
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert (tmp_path / "third.html").read_bytes() == first


def test_an_old_page_is_replaced_whole_or_not_at_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(path.name for path in folder.iterdir())
    (folder / PAGE).write_text("old")

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", broken)
        with pytest.raises(OSError, match="disk full"):
            build_report(folder)
    assert (folder / PAGE).read_text() == "old"
    build_report(folder)
    assert (folder / PAGE).read_text("utf-8").startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in folder.iterdir()) == before


def test_without_matplotlib(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = read(build_report(folder))
    assert page.tags["svg"] == 0
    assert "pip install 'vtrim_hf[plots]'" in page.text
    assert "Speed" in page.tables
    # The pictures that lie beside the figures stand in.
    assert "Picture: search/search.png" in titles(folder)


def test_a_run(tmp_path: Path, search: SearchResult) -> None:
    search.save(tmp_path / "search" / "search.json")
    summary = {
        "recipe": "sql",
        "target": "smollm2",
        "draft": "eagle3",
        "drafts_are": "together",
        "goal": 1.5,
        "goal_met": False,
        "domains": [{"name": "sql", "tokens": 1000, "conversations": 10}],
        "drafts": [
            {
                "name": "all domains",
                "k": search.k,
                "vocab_size": 40_000,
                "heldout_coverage": 0.97,
                "heldout_interval": [0.96, 0.98],
                "speedup": 1.25,
                "training": {"acceptance_length": 2.5},
                "measured_by_domain": {"sql": {"prompts": 4, "speedup": 1.25}},
                "published": {"url": "https://hub.example/user/draft", "commit": "c" * 40},
            }
        ],
        "pieces": [
            {"piece": "search", "step": "search", "status": "done", "reason": "", "seconds": 1.5},
            {"piece": "measure", "step": "measure", "status": "done", "reason": "asked"},
        ],
        "versions": {"python": "3.11", "packages": {"torch": "2"}, "machine": {"cpu": "Test CPU"}},
    }
    write_json(tmp_path / "report.json", summary)
    write_json(tmp_path / "run.json", {"format": 1, "pieces": {}})
    (tmp_path / "recipe.yaml").write_text("target: smollm2\n# <b>mine</b>\n")
    page = read(build_report(tmp_path))
    assert titles(tmp_path) == ["The run", "Search", "Missing: measure/decode_report.json"]
    assert "the step measure is recorded as done (asked), but its file is not here" in page.text
    drafts = dict(zip(*page.tables["Drafts"], strict=True))
    assert drafts["covered, held out"] == "97.00 %"
    assert drafts["speed-up"] == "1.25"
    assert drafts["length in training"] == "2.50"
    asked = {row[0]: row[1] for row in page.tables["What was asked for"]}
    assert asked["goal"] == "speed-up of at least 1.5: missed"
    assert "# <b>mine</b>" in page.text
    assert "vtrim run recipe.yaml" in page.text
    assert "https://hub.example/user/draft" in page.text
    assert page.tables["Measured by domain, draft for all domains"][1][0] == "sql"
    assert {row[0]: row[1] for row in page.tables["Releases and machine"]}["cpu"] == "Test CPU"


def test_a_run_that_is_not_finished(tmp_path: Path) -> None:
    pieces = {"count sql": {"seconds": 2.0, "finished": "2026-01-01T00:00:00Z"}, "odd": 3}
    write_json(tmp_path / "run.json", {"format": 1, "pieces": pieces})
    page = read(build_report(tmp_path))
    assert "report.json is missing, so the run is not finished" in page.text
    assert "recipe.yaml is missing" in page.text
    assert page.tables["Steps that are done"][1:] == [["count sql", "2.0", "2026-01-01T00:00:00Z"]]
    assert len(page.tables["Parts that no file tells of"]) == 5


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ({"domains": [{"name": deep(600)}]}, "report.json could not be shown: it is nested"),
        ({"target": deep(900)}, ""),
        ({"versions": {"python": "3", "machine": {"cpu": deep(600)}}}, "versions in report.json"),
        ({"pieces": [{"piece": "measure", "step": "measure", "reason": deep(600)}]}, "nested"),
        ({"goal": 1.5, "goal_met": []}, ""),
        ({"goal": {}, "goal_met": {"a": 1}, "drafts": [{"name": []}], "pieces": {}}, ""),
    ],
)
def test_a_damaged_report_of_a_run_is_named_and_the_rest_is_shown(
    tmp_path: Path, search: SearchResult, summary: dict[str, Any], said: str
) -> None:
    search.save(tmp_path / "search" / "search.json")
    write_json(tmp_path / "run.json", {"format": 1, "pieces": {}})
    (tmp_path / "recipe.yaml").write_text("target: smollm2\n")
    write_json(tmp_path / "report.json", summary)
    page = read(build_report(tmp_path))
    assert titles(tmp_path)[:2] == ["The run", "Search"]
    assert "target: smollm2" in page.text
    assert "reached" not in page.text
    run = next(one for one in make_page(tmp_path).sections if one.title == "The run")
    assert said in run.problem
    assert bool(run.problem) == bool(said)
    if "goal" in summary:
        asked = {row[0]: row[1] for row in page.tables["What was asked for"]}
        assert asked["goal"].endswith(": not measured")


@pytest.mark.parametrize("part", ["run_section", "missing_parts"])
def test_no_section_takes_the_page_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    write_json(tmp_path / "run.json", {"format": 1, "pieces": {}})

    def broken(*_: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setattr(report_page, part, broken)
    made = make_page(tmp_path)
    title = {"run_section": "The run: This file", "missing_parts": "Missing parts: The list"}[part]
    (problem,) = (one for one in made.problems if one.startswith(title))
    assert "could not be shown, it is damaged or of another release: KeyError('x')" in problem


def test_drafts_of_several_domains(tmp_path: Path, search: SearchResult) -> None:
    write_json(tmp_path / "run.json", {"format": 1, "pieces": {}})
    for domain in ("sql", "chat"):
        search.save(tmp_path / "domains" / domain / "search" / "search.json")
        write_json(tmp_path / "domains" / domain / "draft" / "training_report.json", training())
    assert titles(tmp_path) == [
        "The run",
        "Search: chat",
        "Training: chat",
        "Search: sql",
        "Training: sql",
    ]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def emptied(path: Path) -> None:
    path.write_text("")


def listed(path: Path) -> None:
    path.write_text("[1, 2]")


def nested(path: Path) -> None:
    path.write_text("[" * 200_000)


@pytest.mark.parametrize("damage", [cut, emptied, listed, nested])
@pytest.mark.parametrize(
    "name",
    [
        "search/search.json",
        "draft/training_report.json",
        "draft/vtrim/coverage.json",
        "measure/decode_report.json",
        "bench/figures.json",
    ],
)
def test_a_damaged_file_is_named_and_the_rest_is_shown(
    folder: Path, name: str, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_page, "_can_draw", lambda: False)  # quick, and no less damaged
    if name == "bench/figures.json" and damage is listed:
        return  # any JSON is figures
    damage(folder / name)
    made = make_page(folder)
    page = Page(made.html)
    page.check_harmless()
    (problem,) = made.problems
    assert name in problem
    assert "could not be shown" in problem
    assert problem.split(": ", 2)[2] in page.text
    assert len(made.sections) == 7 + 1  # undrawn, the picture of the search is shown


def test_fields_of_other_kinds_do_no_harm(folder: Path) -> None:
    told = training()
    told |= {"curve": [{"tokens": "many", "loss": [1]}, 7], "evaluations": [{"step": {"a": 1}}]}
    told |= {"settings": [1], "best": 3, "seconds": None, "finished": False}
    write_json(folder / "draft" / "training_report.json", told)
    write_json(folder / "bench" / "figures.json", {"over_plain": 3, "acceptance_by_position": [1]})
    data = json.loads((folder / "measure" / "decode_report.json").read_text())
    del data["rows"][0]["entries"]["draft"]["tokens"]
    write_json(folder / "measure" / "decode_report.json", data)
    (folder / "bench" / "report.png").write_bytes(b"no image")
    (folder / "bench" / "report.md").write_bytes(b"\xff\xfe")
    made = make_page(folder)
    Page(made.html).check_harmless()
    said = " | ".join(made.problems)
    assert "Training: The training is not finished" in said
    assert "KeyError('tokens')" in said
    assert "it is no PNG image" in said
    assert "report.md" in said


def test_a_hostile_folder_gives_a_harmless_page(tmp_path: Path, search: SearchResult) -> None:
    folder = hostile(tmp_path, search)
    made = make_page(folder)
    page = Page(made.html)
    page.check_harmless()
    assert not [one for one in made.problems if "Missing: " not in one], made.problems
    assert page.tags["img"] == 2
    assert page.tags["title"] == 1 + page.tags["svg"]
    assert page.tags["h1"] == 2  # ours, and the one of the Markdown
    assert "a <b> & 'c'" in page.text
    assert "49" not in page.tables["Machine"][0][0]
    assert "{{ 7 * 7 }}" in page.text
    assert made.html.count("<script") == 0
    assert "\\u202e\\u0000\\ud800" in page.text
    assert "pwned" in page.text
    links = [value for tag, name, value in page.attributes if tag == "a" and name == "href"]
    assert all(link.startswith("#s") for link in links)


def test_the_page_forbids_its_browser_to_load(whole: Path) -> None:
    page = read(whole / PAGE)
    policy = next(v for tag, name, v in page.attributes if (tag, name) == ("meta", "content"))
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


@pytest.mark.parametrize("names", [(), ("notes.txt", "config.json")])
def test_nothing_to_tell_of(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    wanted = "it is empty" if not names else "among 2 files"
    with pytest.raises(ValueError, match=rf"holds nothing .*{wanted}: name a folder that"):
        build_report(tmp_path)
    assert not (tmp_path / PAGE).exists()


def test_the_page_must_be_a_file(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the page must be a file, .* is a folder"):
        build_report(whole, tmp_path)


def test_a_large_folder_is_listed_in_part(tmp_path: Path) -> None:
    write_json(tmp_path / "zz" / "figures.json", {"a": 1})
    for at in range(250):
        (tmp_path / f"{at:03}.txt").write_text("x")
    page = read(build_report(tmp_path))
    listed = next(rows for name, rows in page.tables.items() if name.startswith("251 files"))
    assert listed[1] == ["zz/figures.json", "figures of a benchmark", "Figures: zz/figures.json"]
    assert "51 more rows are in the file" in page.text


def test_what_ships_with_the_repository(tmp_path: Path) -> None:
    examples = Path(__file__).parents[2] / "examples"
    for folder in (examples / "drafts" / "smollm2_wikisql", examples / "evidence"):
        if folder.is_dir():
            made = make_page(folder)
            Page(made.html).check_harmless()
            assert made.problems == ()
            assert len(made.html) < 16 << 20


def test_long_numbers_of_drafted_tokens(folder: Path) -> None:
    report = DecodeReport.load(folder / "measure" / "decode_report.json")
    assert report.draft.acceptance_by_position
    (section,) = (s for s in make_page(folder).sections if s.title == "Measurement")
    assert dict(section.glance)["acceptance length"] == f"{report.acceptance_length:.2f}"


def test_the_template_lies_beside_the_module() -> None:
    assert (Path(report_page.__file__).parent / "report_page.html.jinja").is_file()
