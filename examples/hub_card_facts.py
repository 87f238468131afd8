"""What a trained draft's card is made of: facts that `vtrim publish` would publish, and evidence.

Facts of a draft lie beside its measurement, examples/evidence/trained_drafts/NAME/vtrim, or
with the draft where that is part of this repository, examples/drafts/TARGET_NAME/.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_parts import weights_hash

from vtrim_hf.coverage_metadata import COVERAGE_JSON, make_metadata, read
from vtrim_hf.decode_report import DecodeReport
from vtrim_hf.hub_source import load_source, tokenizer_of
from vtrim_hf.named_models import NamedModel
from vtrim_hf.plain_facts import plain
from vtrim_hf.search_result import SearchResult
from vtrim_hf.token_counts import TokenCounts
from vtrim_hf.training_facts import TRAINING_JSON, WEIGHTS, training_beside, training_facts

HERE = Path(__file__).resolve().parent
EVIDENCE = HERE / "evidence" / "trained_drafts"
DRAFTS = HERE / "drafts"
FIGURES = "figures.json"
BENCH_FILES = (FIGURES, "report.md", "report.png")
REPORT_JSON = "decode_report.json"
_SPREAD = ("median", "q25", "q75", "low", "high")
_LAST_MARK = "<!-- vtrim:end citation -->"


@dataclass(frozen=True)
class Evidence:
    """What is known of one trained draft.

    Attributes:
        name: of its domain.
        facts: what `vtrim/coverage.json` says.
        figures: what `bench_trained_draft.py` measured.
        training: what `training_report.json` holds.
    """

    name: str
    facts: dict[str, Any]
    figures: dict[str, Any]
    training: dict[str, Any]

    @classmethod
    def of(cls, name: str, *, evidence: Path = EVIDENCE, drafts: Path = DRAFTS) -> Evidence:
        """Read the evidence of a draft.

        Raises:
            FileNotFoundError: if a file is missing.
            ValueError: if the files tell of different drafts or measurements.
        """
        place = evidence / name
        facts, training = place / COVERAGE_JSON, place / TRAINING_JSON
        figures, shipped = _json(place / FIGURES), None
        if not facts.is_file():
            shipped = next(iter(sorted(drafts.glob(f"*_{name}"))), None)
            if shipped is None or not (shipped / COVERAGE_JSON).is_file():
                raise FileNotFoundError(
                    f"{facts} is missing: `python examples/render_hub_cards.py --add {name} "
                    "--draft FOLDER --bench FOLDER` makes it"
                )
            facts, training = shipped / COVERAGE_JSON, shipped / TRAINING_JSON
        found = cls(name, read(facts), figures, _json(training))
        wrong = found.disagreements()
        # Of other drafts no weights lie here: theirs were compared as they were added.
        if shipped is not None and (shipped / WEIGHTS).is_file() and "draft_weights" in figures:
            wrong += [told for told in [other_draft(figures, shipped)] if told]
        if wrong:
            raise ValueError(
                f"{facts} and the files of {place} do not tell of the same draft: {wrong[0]}; add "
                f"it anew with --add {name}, once all are of one training and one measurement"
            )
        return found

    def disagreements(self) -> list[str]:
        """Return where the facts say anything else than the measurement and the training."""
        expected = {
            "draft.k": self.figures["head_rows"]["trimmed"],
            "target.vocab_size": self.figures["vocab_size"],
            **{f"decoding.{name}": value for name, value in decoding_of(self.figures).items()},
        }
        wrong = []
        for path, value in expected.items():
            said: Any = self.facts
            for part in path.split("."):
                said = said.get(part) if isinstance(said, dict) else None
            if not same(said, value):
                wrong.append(f"{path} is {said!r:.80}, {FIGURES} has {value!r:.80}")
        training = plain(training_facts(self.training, self.facts["draft"]["fingerprint"]))
        said = self.facts.get("training", {})
        wrong += [
            f"training.{name} is {said.get(name)!r:.80}, {TRAINING_JSON} has {value!r:.80}"
            for name, value in training.items()
            if not same(said.get(name), value)
        ]
        return wrong


def other_draft(figures: Mapping[str, Any], draft: Path) -> str:
    """Say that figures are of another draft than the one in a folder; nothing if they are not.

    The weights tell. Figures without their hash name the whole folder as it was: of one that has
    other files since nothing is known.
    """
    named = NamedModel(str(draft), is_folder=True)
    measured = figures.get("draft_weights")
    found = weights_hash(named) if measured else named.identity
    measured = measured or figures.get("draft_identity")
    if measured == found:
        return ""
    return f"the draft in {draft} is {found}, {FIGURES} is of {measured}"


def decoding_of(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of decoding that the figures of a benchmark tell, too."""

    def told(name: str) -> dict[str, Any]:
        return {
            "speedup": {part: figures["over_plain"][name][part] for part in _SPREAD},
            "tokens_per_second": figures["tokens_per_second"][name],
            "acceptance_length": figures["acceptance_length"][name],
        }

    return {
        **told("trimmed"),
        "prompts": figures["prompts"],
        "dtype": figures["dtype"],
        "num_assistant_tokens": figures["draft_length"],
        "compared": [
            {"name": name, "k": rows, **told(name)}
            for name, rows in figures["head_rows"].items()
            if name != "trimmed"
        ],
    }


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, numbers but for their last digits."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return math.isclose(one, other, rel_tol=1e-9) if numbers else bool(one == other)


def names(evidence: Path = EVIDENCE) -> list[str]:
    """Return the domains whose draft was trained and measured."""
    return sorted(place.parent.name for place in evidence.glob(f"*/{FIGURES}"))


def measured_beside(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was measured and no `coverage.json` holds."""
    return {
        "command": figures["command"],
        "data": figures["data"],
        "data_fingerprint": figures["data_fingerprint"],
        "new_tokens": figures["new_tokens"],
        "trimmed_over": figures["trimmed_over"],
        "acceptance_length_of_trimmed_over": figures["acceptance_length_of_trimmed_over"],
        "acceptance_by_position": figures["acceptance_by_position"],
        "head_share": figures["head_share"],
        "identical_in_float32": figures["identical_in_float32"],
    }


def collect(
    name: str,
    draft: Path,
    bench: Path,
    *,
    search: Path | None = None,
    counts: Path | None = None,
    target_id: str | None = None,
    datasets: list[str] | None = None,
    tokenizer: Any = None,
    evidence: Path = EVIDENCE,
) -> dict[str, Any]:
    """Put a draft's evidence together: its facts, as publishing makes them, and the measurement.

    Args:
        name: of the domain.
        draft: folder of the trained draft.
        bench: what `bench_trained_draft.py` wrote of it.
        search: search.json of `vtrim search`.
        counts: what `vtrim count` wrote.
        target_id: Hub id of the target, where the draft does not know it.
        datasets: Hub ids of what was counted.
        tokenizer: the target's, to be published with the draft, where none lies in its folder.
        evidence: folder of all evidence.

    Returns:
        What only the draft's folder tells of its publishing: whether a tokenizer goes with it and
        has a chat template, and the text below the card's own sections.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the draft is not the one that was measured, or was not trained.
    """
    wrong = other_draft(_json(bench / FIGURES), draft)
    if wrong:
        raise ValueError(
            f"{wrong}: give the draft that was measured, or measure this one with "
            "examples/bench_trained_draft.py"
        )
    model, source = load_source(draft)
    has_one = (draft / "tokenizer_config.json").is_file()
    published = tokenizer_of(model, None if has_one else tokenizer, source)
    fingerprint = model.vocabulary.fingerprint
    training = training_beside(source, fingerprint)
    if training is None:
        raise ValueError(f"{draft} holds no {TRAINING_JSON} of this draft: give the trained draft")
    facts = make_metadata(
        model,
        search=None if search is None else SearchResult.load(search),
        report=DecodeReport.load(bench / REPORT_JSON),
        counts=None if counts is None else TokenCounts.load(counts),
        target_id=None if model.config.target_name else target_id,
        datasets=datasets or (),
        tokenizer=published,
        training=training,
        recorded=model.coverage_metadata,
    )
    place = evidence / name
    (place / COVERAGE_JSON).parent.mkdir(parents=True, exist_ok=True)
    for file in BENCH_FILES:
        if (bench / file).is_file() and bench.resolve() != place.resolve():
            shutil.copy(bench / file, place / file)
    shutil.copy(draft / TRAINING_JSON, place / TRAINING_JSON)
    text = json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (place / COVERAGE_JSON).write_text(text, encoding="utf-8")
    return {
        "chat": bool(getattr(published, "chat_template", None)),
        "tokenizer": published is not None,
        "text": own_text(draft / "README.md"),
    }


def own_text(card: Path) -> str:
    """Return what stands below our sections of a card."""
    if not card.is_file():
        return ""
    _, mark, text = card.read_text(encoding="utf-8").partition(_LAST_MARK)
    return text.strip() if mark else ""


def _json(place: Path) -> Any:
    if not place.is_file():
        raise FileNotFoundError(f"{place} is missing: a trained draft and its measurement have it")
    return json.loads(place.read_text(encoding="utf-8"))
