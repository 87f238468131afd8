"""`.eval_results`: recorded figures, for benchmarks that the user names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from published_facts import make_pair
from vtrim_hf.coverage_metadata import make_metadata
from vtrim_hf.hub_evaluation import (
    EVAL_RESULTS,
    FIGURES,
    check_eval_results,
    eval_results_text,
    write_eval_results,
)

ASKED = {"dataset": "me/sql-bench", "task": "sql", "figure": "speedup"}


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    pair = make_pair()
    return make_metadata(pair.draft, search=pair.search, report=pair.report)


def told(facts: dict[str, Any], *asked: dict[str, str]) -> Any:
    text = eval_results_text(asked, facts, "me/x", "https://hub/")
    return None if text is None else yaml.safe_load(text)


def test_a_result_is_the_figure_that_was_recorded(facts: dict[str, Any]) -> None:
    (found,) = told(facts, {**ASKED, "revision": "abc"})
    assert found == {
        "dataset": {"id": "me/sql-bench", "task_id": "sql", "revision": "abc"},
        "value": facts["decoding"]["speedup"]["median"],
        "source": {
            "url": "https://hub/me/x/blob/main/vtrim/coverage.json",
            "name": "vtrim/coverage.json",
        }
        | {key: value for key, value in found["source"].items() if key in ("user", "org")},
        "notes": "median over the prompts, against the target alone in its fastest dtype; "
        "2 prompts on Test CPU; 24 kept ids",
    }


def test_a_result_of_a_branch_links_to_the_branch(facts: dict[str, Any]) -> None:
    """The Hub shows main's; the source of another branch's is that branch."""
    text = eval_results_text([ASKED], facts, "me/x", "https://hub", "v/2")
    assert text is not None
    (found,) = yaml.safe_load(text)
    assert found["source"]["url"] == "https://hub/me/x/blob/v%2F2/vtrim/coverage.json"


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_told_and_missed_by_name(facts: dict[str, Any], figure: str) -> None:
    check_eval_results([{**ASKED, "figure": figure}])
    (found,) = told(facts, {**ASKED, "figure": figure})
    value = {
        "speedup": facts["decoding"]["speedup"]["median"],
        "coverage": facts["coverage"]["heldout"]["share"],
    }.get(figure, facts["decoding"].get(figure))
    assert found["value"] == value
    bare = {name: facts[name] for name in ("format_version", "target", "draft")}
    with pytest.raises(ValueError, match=f"the figure {figure}, which is not recorded"):
        told(bare, {**ASKED, "figure": figure})


def test_nothing_is_written_unasked(facts: dict[str, Any], tmp_path: Path) -> None:
    check_eval_results(())
    assert told(facts) is None
    assert write_eval_results(tmp_path, None) == ()
    assert not [*tmp_path.iterdir()]
    assert write_eval_results(tmp_path, "- x\n") == (EVAL_RESULTS,)
    assert (tmp_path / EVAL_RESULTS).read_text() == "- x\n"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dataset": "/home/me/data"}, "NAMESPACE/NAME, got '/home/me/data'"),
        ({"dataset": "data"}, "NAMESPACE/NAME"),
        ({"dataset": "a b/c"}, "NAMESPACE/NAME"),
        ({"figure": "loss"}, "must be one of acceptance_length, "),
        ({"value": "2.0"}, "has the fields dataset, task, figure"),
        ({"task": ""}, "all of them texts"),
        ({"revision": 3}, "all of them texts"),
    ],
)
def test_what_is_asked_for_wrongly_is_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_eval_results([{**ASKED, **change}])


@pytest.mark.parametrize("asked", [3, "me/bench", {"dataset": "me/bench"}, [3]])
def test_other_things_are_no_results(asked: Any) -> None:
    with pytest.raises(TypeError, match="takes a list of mappings"):
        check_eval_results(asked)
