"""The sections of a recipe that set its later steps: search, train, measure, publish."""

from __future__ import annotations

import re
import string
from pathlib import Path

from .recipe import (
    DTYPES,
    PER_DOMAIN,
    TOGETHER,
    MeasureChoice,
    PublishChoice,
    SearchChoice,
    TrainChoice,
)
from .recipe_fields import Section

_COSTS = ("flops", "bytes", "measured")
LONGEST_DRAFT = 1000
SMALLEST = 50
"""The `k_min` of `search_vocabulary` where none is given."""
_LONGEST, _MOST_SEED = 1_000_000, 2**32 - 1
_SHORTEST = 3  # tokens of a conversation, the third being the first that is drafted
_PAPER = {"alpha": 0.5, "k_min": 50, "k_max": 50_000, "multiple_of": 1}


def read_search(section: Section) -> SearchChoice:
    """Read how the vocabulary is chosen."""
    read = SearchChoice(
        cost=section.choice("cost", _COSTS, "flops"),
        alpha=section.number("alpha", None, most=1),
        min_coverage=section.number("min_coverage", 0.0, most=1),
        k_min=section.whole("k_min", None),
        k_max=section.whole("k_max", None),
        multiple_of=section.whole("multiple_of", None),
        method=section.choice("method", ("exact", "tpe"), None),
        trials=section.whole("trials", None),
        seed=section.whole("seed", None, least=0, most=_MOST_SEED),
        preset=section.choice("preset", ("paper",), None),
        keep=section.texts("keep"),
    )
    section.finish()
    least = SMALLEST if read.k_min is None else read.k_min
    if read.k_max is not None and least > read.k_max:
        section.wrong(
            f"search.k_min is {least}{' by default' if read.k_min is None else ''}, which is more "
            f"than k_max, {read.k_max}",
            section.line_of("k_max" if read.k_min is None else "k_min"),
        )
    if read.preset is not None:
        for key, value in _PAPER.items():
            if getattr(read, key) not in (None, value):
                section.wrong(
                    f"the preset 'paper' sets {key} to {value}: leave one of them out",
                    section.line_of(key),
                )
        if read.keep:
            section.wrong(
                "the preset 'paper' keeps nothing: leave keep out", section.line_of("keep")
            )
    method = read.method or ("tpe" if read.preset else "exact")
    if method == "exact" and (read.trials, read.seed) != (None, None):
        key = "trials" if read.trials is not None else "seed"
        section.wrong(f"search.{key} is for the method tpe", section.line_of(key))
    return read


def read_train(top: Section, folder: Path, *, trained: bool) -> TrainChoice | None:
    """Read how a draft is trained; None for a draft that is cut."""
    if not trained:
        if top.has("train") and not top.is_off("train"):
            top.wrong(
                "train is for a draft that is trained, and this recipe cuts one: leave it out, or "
                "say draft: {body: eagle3} without a model",
                top.line_of("train"),
            )
        return None
    section = top.section("train")
    cache = section.text("feature_cache", "auto")
    read = TrainChoice(
        minutes=section.number("minutes", None, most=1e6, above=0),
        epochs=section.number("epochs", None, most=1e6, above=0),
        unroll=section.whole("unroll", None, most=LONGEST_DRAFT),
        unroll_warmup=section.number("unroll_warmup", None, most=1),
        learning_rate=section.number("learning_rate", None, most=1, above=0),
        batch_size=section.whole("batch_size", None, most=_LONGEST),
        accumulate=section.whole("accumulate", None, most=_LONGEST),
        max_length=section.whole("max_length", None, least=_SHORTEST, most=_LONGEST),
        bf16=section.flag("bf16", None),
        target_dtype=section.choice("target_dtype", ("auto", *DTYPES), "auto"),
        seed=section.whole("seed", 42, least=0, most=_MOST_SEED),
        feature_cache=cache if cache in ("auto", "none") else _beside(section, folder, cache),
        tensorboard=section.flag("tensorboard", False),
    )
    section.finish()
    return read


def _beside(section: Section, folder: Path, name: str) -> str:
    """Return a folder beside the recipe, whether it is there yet or not."""
    try:
        place = (folder / Path(name).expanduser()).resolve()
        if not place.is_file():
            return str(place)
        wrong = f"is a file: {place}"
    except (OSError, RuntimeError, ValueError) as error:
        wrong = f"is no folder's name: {error}"
    section.wrong(
        f"train.feature_cache {wrong}; name a folder, auto or none",
        section.line_of("feature_cache"),
    )
    return "auto"


def read_measure(top: Section) -> MeasureChoice | None:
    """Read how the draft is measured; false and null stand for not at all."""
    if top.is_off("measure"):
        return None
    section = top.section("measure")
    read = MeasureChoice(
        prompts=section.whole("prompts", 20, most=_LONGEST),
        max_new_tokens=section.whole("max_new_tokens", 128, most=_LONGEST),
        dtype=section.choice("dtype", DTYPES, "float32"),
        draft_length=section.whole("draft_length", None, most=LONGEST_DRAFT),
        plain_dtypes=section.texts("plain_dtypes", None, may_be_empty=True),
        compare_full=section.flag("compare_full", True),
        min_speedup=section.number("min_speedup", None, most=1000, above=0),
    )
    section.finish()
    odd = sorted({*(read.plain_dtypes or ())} - {*DTYPES})
    if odd:
        section.wrong(
            f"measure.plain_dtypes may hold {', '.join(DTYPES)}, got {odd[0]!r}",
            section.line_of("plain_dtypes"),
        )
    return read


def read_publish(top: Section, drafts: str, domains: list[str]) -> PublishChoice | None:
    """Read where the draft goes, a place for each; false and null stand for nowhere."""
    if top.located("publish") is None or top.is_off("publish"):
        return None
    from .hub_account import check_reference
    from .hub_license import check_license

    section = top.section("publish")
    repo_id = section.text("repo_id")
    endpoint = section.text("endpoint", None)
    create_pr = section.flag("create_pr", False)
    wrong_id = None if repo_id is None else _wrong_repo_id(repo_id, drafts, domains)
    named = None if wrong_id else repo_id
    read = PublishChoice(
        repo_id=repo_id or "",
        license=section.text("license") or "",
        private=section.flag("private", None),
        endpoint=endpoint,
        revision=section.text("revision", None),
        create_pr=create_pr,
        exist_ok=section.flag("exist_ok", False),
        despite_missed_goal=section.flag("despite_missed_goal", False),
        index=_index(section, named, create_pr, drafts, domains),
    )
    section.finish()
    for key, check in (
        ("license", check_license),
        ("revision", lambda name: check_reference(name, "revision")),
    ):
        try:
            check(getattr(read, key) or None)
        except ValueError as error:
            section.wrong(f"publish.{key}: {error}", section.line_of(key))
    if read.create_pr and read.revision not in (None, "main"):
        section.wrong(
            "publish.create_pr proposes to main: leave revision or create_pr out",
            section.line_of("revision"),
        )
    if endpoint is not None and not re.match(r"https?://\S+$", endpoint):
        section.wrong(
            f"publish.endpoint must begin with http:// or https://, got {endpoint!r}",
            section.line_of("endpoint"),
        )
    if wrong_id is not None:
        section.wrong(f"publish.repo_id {wrong_id}", section.line_of("repo_id"))
    return read


def _index(
    section: Section, repo_id: str | None, create_pr: bool, drafts: str, domains: list[str]
) -> str | None:
    """Read which repository lists the drafts; true stands for its usual name, false for none.

    Without a name that the drafts could have there is nothing to list.
    """
    from .family_names import PLACE, REPOSITORIES, index_name

    found, line = section.located("index"), section.line_of("index")
    if repo_id is None or section.is_off("index"):
        return None
    if found is not None and not isinstance(found.value, bool | str):
        section.wrong(f"publish.index must be owner/name, true or false, got {found.kind}", line)
        return None
    reason = None
    if create_pr:
        reason = "lists what is published, create_pr only proposes: leave one out"
    elif drafts != PER_DOMAIN or PLACE not in repo_id:
        reason = "lists one draft a domain: say drafts: per_domain, or leave it out"
    if reason is not None:
        if found is not None:
            section.wrong(f"publish.index {reason}", line)
        return None
    if found is None and len(domains) < 2:
        return None
    taken = [repo_id.replace(PLACE, name) for name in domains]
    try:
        return index_name(REPOSITORIES, repo_id, None if found is None else found.value, taken)
    except ValueError as error:
        section.wrong(f"publish.index: {error}", line)
        return None


def _wrong_repo_id(repo_id: str, drafts: str, domains: list[str]) -> str | None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        names = {name for _, name, _, _ in string.Formatter().parse(repo_id) if name is not None}
    except ValueError as error:
        return f"is no name: {error}"
    if names - {"domain"}:
        return f"may hold {{domain}} and no other braces, got {repo_id!r}"
    if drafts == TOGETHER and names:
        return "holds {domain}, but there is one draft of all domains: say drafts: per_domain"
    if drafts == PER_DOMAIN and not names and len(domains) > 1:
        return f"must hold {{domain}}, for there is one draft a domain, got {repo_id!r}"
    for domain in domains or ["domain"]:
        name = repo_id.replace("{domain}", domain)
        if "/" not in name:
            return f"must be owner/name, got {name!r}"
        try:
            validate_repo_id(name)
        except HFValidationError as error:
            return f"is no name of a repository: {error}"
    return None
