"""`.eval_results`: recorded figures for a benchmark on the Hub, only where asked for.

The Hub shows a result where its data set is registered as a benchmark, and nowhere else; whether
one is, the Hub alone knows. So the user names the data set, and the figure is what was recorded
with the draft: nobody types it in.

The Hub reads the file of main, and of pull requests to it. On a branch it shows nothing: there the
file travels with the draft, and its source is the branch's own facts, not those of main.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .coverage_metadata import COVERAGE_JSON
from .plain_facts import hub_id

EVAL_RESULTS = ".eval_results/vtrim.yaml"
FIGURES = ("acceptance_length", "acceptance_rate", "coverage", "speedup")
_FIELDS = ("dataset", "task", "figure", "revision")


def check_eval_results(asked: Any) -> None:
    """Raise unless results are asked for as `publish` documents.

    Raises:
        TypeError: if it is no list of mappings.
        ValueError: naming the field, its rule and its value.

    Example:
        >>> check_eval_results([{"dataset": "me/sql-bench", "task": "sql", "figure": "speedup"}])
    """
    if not isinstance(asked, Sequence) or not all(isinstance(one, Mapping) for one in asked):
        raise TypeError(
            f"eval_results= takes a list of mappings with {', '.join(_FIELDS[:3])}, got "
            f"{asked!r:.120}"
        )
    for one in asked:
        unknown = sorted(str(name) for name in one if name not in _FIELDS)
        texts = all(isinstance(text, str) and text for text in one.values())
        if unknown or not texts or not set(_FIELDS[:3]) <= set(one):
            raise ValueError(
                f"a result of eval_results= has the fields {', '.join(_FIELDS[:3])}, and perhaps "
                f"revision, all of them texts, got {dict(one)!r:.200}"
            )
        if hub_id(one["dataset"], "benchmark's data set") is None:
            raise ValueError(
                "eval_results= names a benchmark's data set by its id on the Hub, "
                f"NAMESPACE/NAME, got {one['dataset']!r:.120}"
            )
        if one["figure"] not in FIGURES:
            raise ValueError(
                f"the figure of a result must be one of {', '.join(FIGURES)}, got "
                f"{one['figure']!r:.80}"
            )


def eval_results_text(
    asked: Sequence[Mapping[str, str]],
    facts: Mapping[str, Any],
    repo_id: str,
    endpoint: str,
    revision: str = "main",
) -> str | None:
    """Return the text of `.eval_results/vtrim.yaml`, None if no result is asked for.

    Args:
        asked: what `check_eval_results` lets through.
        facts: of the draft.
        repo_id: where it is published.
        endpoint: of the Hub.
        revision: the branch that it is published on; of a pull request, that it is meant for.

    Raises:
        ValueError: if a figure was not recorded.
    """
    if not asked:
        return None
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    # The Hub's own links have a slash within a branch's name escaped, too.
    page = f"{endpoint.rstrip('/')}/{repo_id}/blob/{quote(revision, safe='')}"
    entries = [
        EvalResultEntry(
            dataset_id=one["dataset"],
            task_id=one["task"],
            value=_figure(one["figure"], facts),
            dataset_revision=one.get("revision"),
            source_url=f"{page}/{COVERAGE_JSON}",
            source_name=COVERAGE_JSON,
            notes=_notes(one["figure"], facts),
        )
        for one in asked
    ]
    text: str = yaml.safe_dump(
        eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True, width=1000
    )
    return text


def write_eval_results(folder: Path, text: str | None) -> tuple[str, ...]:
    """Write the file, if there is text, into what is published, and return its name."""
    if text is None:
        return ()
    place = folder / EVAL_RESULTS
    place.parent.mkdir(exist_ok=True)
    place.write_text(text, encoding="utf-8")
    return (EVAL_RESULTS,)


def _figure(name: str, facts: Mapping[str, Any]) -> float:
    if name == "coverage":
        found = facts.get("coverage", {}).get("heldout", {}).get("share")
    else:
        found = facts.get("decoding", {}).get(name)
        found = found.get("median") if name == "speedup" and found else found
    if found is None:
        way = "search=" if name == "coverage" else "report="
        raise ValueError(
            f"eval_results= asks for the figure {name}, which is not recorded with this draft: "
            f"pass {way}, or leave that result out"
        )
    return float(found)


def _notes(name: str, facts: Mapping[str, Any]) -> str:
    kept = f"{facts['draft']['k']} kept ids"
    if name == "coverage":
        return f"share of held-out assistant tokens that the draft can say; {kept}"
    decoding = facts["decoding"]
    said = {
        "acceptance_length": "tokens a verification of the target",
        "acceptance_rate": "accepted of the drafted tokens",
        "speedup": "median over the prompts, against the target alone in its fastest dtype",
    }[name]
    machine = decoding.get("machine", {})
    on = machine.get("gpu") or machine.get("cpu") or "a machine that is not recorded"
    return f"{said}; {decoding['prompts']} prompts on {on}; {kept}"
