"""The facts that travel with a published draft: `vtrim/coverage.json`, made, checked and read.

A fact that is not known is left out; what would tell of somebody's own machine is never let in.
The module itself needs only the standard library, importing `vtrim_hf` loads torch all the same:
who wants neither reads the file as the plain JSON that it is.
"""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .coverage_schema import check_against, coverage_schema
from .decoding_facts import decoding_facts, missed_by_target
from .plain_facts import hub_id, local_path_in, plain, system_of
from .search_facts import PARTS, coverage_facts, missed_in_counts, search_facts
from .training_facts import training_facts

if TYPE_CHECKING:
    from .decode_report import DecodeReport
    from .search_result import SearchResult

FORMAT_VERSION = 1
COVERAGE_JSON = "vtrim/coverage.json"

LARGEST_FILE = 1 << 20
"""Bytes that a file of facts may have; one of a hundred domains has about fifty thousand."""


def make_metadata(
    draft_or_config: Any,
    *,
    search: SearchResult | None = None,
    report: DecodeReport | None = None,
    counts: Any = None,
    target_id: str | None = None,
    draft_id: str | None = None,
    datasets: Iterable[str] = (),
    tokenizer: Any = None,
    training: Any = None,
    recorded: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Put together what is known of a draft, as plain JSON types.

    Args:
        draft_or_config: a `TrimmedDraftForCausalLM`, or its config alone.
        search: the result that its vocabulary was taken from.
        report: what it gained where it was measured.
        counts: the `TokenCounts` that were searched, for numbers of conversations and the tokens
            that are missed most.
        target_id: the target's Hub id; by default what an EAGLE-3 draft was made for. Of this,
            `draft_id` and `datasets` a path on this machine is left out.
        draft_id: Hub id of the model whose head was cut; by default what the body's config names.
        datasets: Hub ids of the data that was counted.
        tokenizer: the target's, for the text of the missed tokens.
        training: the `TrainingReport` of the training that made it, what it holds, or its file.
        recorded: earlier facts of this draft; they stay where nothing newer is given.

    Returns:
        Facts that `check_metadata` lets through.

    Raises:
        ValueError: if `search`, `report`, `training` or `recorded` belong to another vocabulary,
            or an id is neither a Hub id nor a path.

    Example:
        ```python
        draft.coverage_metadata = make_metadata(
            draft, search=result, target_id="HuggingFaceTB/SmolLM2-1.7B-Instruct"
        )
        draft.save_pretrained("draft")  # writes vtrim/coverage.json, too
        ```
    """
    facts = _identity(draft_or_config)
    old = _fitting(recorded, facts)
    if search is not None:
        _same_vocabulary(search.vocabulary.fingerprint, facts, "the search result")
        if counts is not None and counts.fingerprint != search.settings.get("counts"):
            raise ValueError(
                f"the counts have the fingerprint {counts.fingerprint[:12]}, the search was on "
                f"{str(search.settings.get('counts'))[:12]}: give the counts that were searched"
            )
    body = getattr(draft_or_config, "config", draft_or_config).body_config
    named = draft_id or str(getattr(body, "_name_or_path", "") or "")
    made_for = getattr(draft_or_config, "config", draft_or_config).target_name
    if None not in (made_for, target_id) and hub_id(target_id, "target") not in (None, made_for):
        raise ValueError(
            f"this draft was made for {made_for}, not for {target_id}: leave target_id out"
        )
    for role, name in (("target", target_id or made_for), ("draft", named)):
        found = hub_id(name, role) or old.get(role, {}).get("id")
        if found:
            facts[role] = {"id": found, **facts[role]}
    if search is not None:
        facts["search"] = search_facts(search)
        facts["coverage"] = coverage_facts(search, counts)
        facts["required_tokens"] = search.settings.get("required")
    if report is not None:
        facts["decoding"] = decoding_facts(report, facts["draft"]["k"])
    missed = None
    if counts is not None:
        missed = missed_in_counts(counts, draft_or_config, tokenizer)
    elif report is not None and "most_missed_tokens" not in old:
        missed = missed_by_target(report)
    facts["most_missed_tokens"] = missed
    if training is not None:
        facts["training"] = training_facts(training, facts["draft"]["fingerprint"])
    known = [found for found in (hub_id(name, "data set") for name in datasets) if found]
    facts["datasets"] = sorted({*known, *old.get("datasets", ())}) or None
    facts["versions"] = _versions()
    made: dict[str, Any] = plain(facts)
    made = {**old, **made}
    ordered = {name: made[name] for name in coverage_schema()["properties"] if name in made}
    check_metadata(ordered)
    return ordered


def check_metadata(facts: Any) -> None:
    """Raise unless facts are what `vtrim/coverage.json` may hold.

    Raises:
        ValueError: naming the JSON path, the rule and the value: the schema's rules, no path of a
            machine, sizes and intervals that fit each other; or a newer format.
    """
    version = facts.get("format_version") if isinstance(facts, dict) else None
    if type(version) is int and version > FORMAT_VERSION:
        raise ValueError(
            f"$.format_version is {version}, this release reads {FORMAT_VERSION}: upgrade with "
            "`pip install -U vtrim_hf`"
        )
    try:
        check_against(facts, coverage_schema())
        _check_together(facts)
    except ValueError as error:
        raise ValueError(
            f"{error}; leave that fact out, or make the facts anew with make_metadata"
        ) from error


def _check_together(facts: Mapping[str, Any]) -> None:
    """Raise unless facts, each of which the schema lets through, fit each other."""
    found = local_path_in(facts)
    if found is not None:
        raise ValueError(
            f"{found[0]} must not name a place on somebody's machine, got {found[1]!r:.80}"
        )
    k, width = facts["draft"]["k"], facts["target"]["vocab_size"]
    if k > width:
        raise ValueError(f"$.draft.k must be at most $.target.vocab_size={width}, got {k}")
    if not math.isclose(facts["draft"]["share_of_vocabulary"], k / width, rel_tol=1e-6):
        raise ValueError(
            f"$.draft.share_of_vocabulary must be {k}/{width}, got "
            f"{facts['draft']['share_of_vocabulary']}"
        )
    coverage = facts.get("coverage", {})
    parts = {f"$.coverage.{name}": coverage[name] for name in PARTS if name in coverage}
    for domain, known in coverage.get("domains", {}).items():
        parts |= {f"$.coverage.domains[{domain!r}].{n}": known[n] for n in PARTS if n in known}
    for place, part in parts.items():
        _check_ascends(f"{place}.interval", part.get("interval", ()))
    decoding = facts.get("decoding", {})
    spreads = {"$.decoding.speedup": decoding.get("speedup", {})}
    for position, other in enumerate(decoding.get("compared", ())):
        spreads[f"$.decoding.compared[{position}].speedup"] = other["speedup"]
    for place, spread in spreads.items():
        for names in (("low", "median", "high"), ("q25", "median", "q75")):
            _check_ascends(
                f"{place}: {', '.join(names)}", [spread[n] for n in names if n in spread]
            )


def _check_ascends(place: str, values: Sequence[float]) -> None:
    # Equal figures that were computed in two ways may differ in their last digit.
    if any(later < earlier * (1 - 1e-9) for earlier, later in pairwise(values)):
        raise ValueError(f"{place} must ascend, got {list(values)}")


def parse(text: str | bytes) -> dict[str, Any]:
    """Read facts from JSON text.

    Raises:
        ValueError: if it is too large, no JSON, or nothing that `check_metadata` lets through.
    """
    if len(text) > LARGEST_FILE:
        raise ValueError(f"facts must take at most {LARGEST_FILE} bytes, got {len(text)}")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, nested without end
        raise ValueError(f"this is no JSON: {error}") from error
    check_metadata(facts)
    found: dict[str, Any] = facts
    return found


def read(place: str | Path) -> dict[str, Any]:
    """Read the facts of a draft.

    Args:
        place: the draft's folder, or the file itself.

    Raises:
        FileNotFoundError: if there are none.
        ValueError: if the file is damaged; the text names the JSON path.
    """
    path = Path(place)
    if path.is_dir():
        path = path / COVERAGE_JSON
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: drafts that vtrim_hf published or trimmed from a search result "
            "have it; make_metadata makes one"
        )
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path} must take at most {LARGEST_FILE} bytes: it holds no such facts")
    try:
        return parse(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _identity(draft_or_config: Any) -> dict[str, Any]:
    """What the config itself says; a model adds its number of parameters and proven ids."""
    config = getattr(draft_or_config, "config", draft_or_config)
    for name in ("vocab_size", "draft_vocab_size", "body_config", "vocabulary_fingerprint"):
        if not hasattr(config, name):
            raise ValueError(
                f"facts are made of a trimmed draft or its config, got "
                f"{type(draft_or_config).__name__} without {name}: trim one with "
                "TrimmedDraftForCausalLM.from_draft_model"
            )
    draft: dict[str, Any] = {
        "body": config.body,
        "k": config.draft_vocab_size,
        "share_of_vocabulary": config.draft_vocab_size / config.vocab_size,
        "fingerprint": config.vocabulary_fingerprint,
        "layers": getattr(config, "num_hidden_layers", None),
        "dtype": str(getattr(config, "dtype", "") or "").removeprefix("torch.") or None,
    }
    if config is not draft_or_config:
        draft["fingerprint"] = draft_or_config.vocabulary.fingerprint
        draft["parameters"] = sum(one.numel() for one in draft_or_config.parameters())
        draft["dtype"] = str(draft_or_config.dtype).removeprefix("torch.")
    return {
        "format_version": FORMAT_VERSION,
        "target": {"vocab_size": config.vocab_size, "tokenizer_hash": config.tokenizer_hash},
        "draft": draft,
    }


def _fitting(recorded: Mapping[str, Any] | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    if recorded is None:
        return {}
    check_metadata(dict(recorded))
    _same_vocabulary(recorded["draft"]["fingerprint"], facts, "what was recorded")
    old: dict[str, Any] = plain(recorded)
    machine = old.get("decoding", {}).get("machine", {})
    if "system" in machine:  # earlier releases noted down the build of the kernel, too
        machine["system"] = system_of(machine["system"]) or "unknown"
    return old


def _same_vocabulary(found: str, facts: Mapping[str, Any], what: str) -> None:
    own = facts["draft"]["fingerprint"]
    if found != own:
        raise ValueError(
            f"{what} is of the vocabulary {found[:12]}, the draft has {str(own)[:12]}: give what "
            "belongs to this draft"
        )


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("torch", "transformers", "huggingface_hub"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    # Of a checkout that is not installed there is no metadata.
    found["vtrim_hf"] = getattr(sys.modules.get("vtrim_hf"), "__version__", None)
    return found
