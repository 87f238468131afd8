"""From located YAML to a `Recipe`: what each section may hold, and what does not go together."""

from __future__ import annotations

import re
from pathlib import Path

from .chat_data import SUFFIXES
from .recipe import (
    DTYPES,
    PER_DOMAIN,
    TOGETHER,
    Domain,
    EagleChoice,
    FromTarget,
    MeasureChoice,
    PublishChoice,
    Recipe,
)
from .recipe_fields import REQUIRED, Section
from .recipe_models import HUB_ID, place_of, read_draft, read_model
from .recipe_settings import read_measure, read_publish, read_search, read_train
from .recipe_yaml import Located, Mistake

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_NAMES_RULE = "letters, digits, _ . -, at most 100, the first no sign"
_MOST_HELDOUT = 0.9  # more leaves nothing to search on
_LEAST_WEIGHT, _MOST_WEIGHT = 1e-6, 1e6  # beyond, weighted counts are no whole numbers any more


def read_recipe(
    document: Located, path: Path, text: str, mistakes: list[Mistake]
) -> Recipe | None:
    """Read a whole recipe.

    Args:
        document: what the file holds.
        path: the file; other paths are relative to it.
        text: the file's text.
        mistakes: what is wrong is added to them.

    Returns:
        The recipe, which is to be used only if no mistake was added; None if it lacks a part
        without which there is none.
    """
    lines: dict[str, int] = {}
    folder = path.parent
    top = Section("", document, mistakes, lines)
    name = top.text("name", path.stem)
    if not _NAME.fullmatch(name):
        top.wrong(f"name must be {_NAMES_RULE}, got {name!r:.60}", top.line_of("name"))
    target = read_model(top, "target", folder)
    draft = read_draft(top.section("draft", required=True), folder)
    drafts = top.choice("drafts", (TOGETHER, PER_DOMAIN), TOGETHER)
    count = top.section("count")
    heldout = count.number("heldout", 0.2, most=_MOST_HELDOUT)
    strict = count.flag("strict", False)
    common = _from_target(count)
    count.finish()
    domains = _domains(top, folder, heldout=heldout, strict=strict, from_target=common)
    search = read_search(top.section("search"))
    trained = isinstance(draft, EagleChoice)
    train = read_train(top, folder, trained=trained)
    measure = read_measure(top)
    publish = read_publish(top, drafts, [domain.name for domain in domains])
    top.finish()
    _check_together(top, domains, measure, publish)
    if trained:
        _check_trained_on(top, domains)
    if target is None or draft is None or not domains:
        return None
    return Recipe(
        name=name,
        path=path,
        text=text,
        target=target,
        draft=draft,
        domains=domains,
        drafts=drafts,
        search=search,
        train=train,
        measure=measure,
        publish=publish,
        lines=lines,
    )


def _from_target(section: Section, default: FromTarget | None = None) -> FromTarget | None:
    """Read `from_target`: true, false or null, or a mapping of settings over those of `count`."""
    found = section.located("from_target")
    if found is None:
        return default
    if section.is_off("from_target"):
        return None
    if isinstance(found.value, bool):
        return default or FromTarget()
    base = default or FromTarget()
    own = section.section("from_target")
    limit = own.located("limit")
    every = limit is not None and limit.value is None  # null: all, whatever `count` says
    read = FromTarget(
        limit=None if every else own.whole("limit", base.limit),
        max_new_tokens=own.whole("max_new_tokens", base.max_new_tokens, most=1_000_000),
        batch_size=own.whole("batch_size", base.batch_size, most=100_000),
        dtype=own.choice("dtype", ("auto", *DTYPES), base.dtype),
    )
    own.finish()
    return read


def _domains(
    top: Section, folder: Path, *, heldout: float, strict: bool, from_target: FromTarget | None
) -> tuple[Domain, ...]:
    section = top.section("domains", required=True)
    names = section.keys()
    if section.given and not names:
        section.wrong("domains must name at least one domain")
    domains = []
    for name in names:
        if not _NAME.fullmatch(name):
            section.wrong(
                f"a domain's name must be {_NAMES_RULE}, got {name!r:.60}",
                section.line_of(name),
            )
        same = [other for other in names[: names.index(name)] if other.lower() == name.lower()]
        if same:  # one folder, where case does not count
            section.wrong(f"domains {same[0]!r} and {name!r} differ only in case")
        own = section.section(name)
        train = tuple(_data(own, "train", one, folder) for one in own.texts("train", REQUIRED))
        test = own.text("test", None)
        domain = Domain(
            name=name,
            train=train,
            test=None if test is None else _data(own, "test", test, folder),
            split=own.text("split", None),
            test_split=own.text("test_split", None),
            text_column=own.text("text_column", None),
            heldout=own.number("heldout", heldout, most=_MOST_HELDOUT),
            strict=own.flag("strict", strict),
            floor=own.number("floor", None, most=1),
            weight=own.number("weight", 1.0, most=_MOST_WEIGHT),
            from_target=_from_target(own, from_target),
        )
        _check_domain(own, domain)
        own.finish()
        domains.append(domain)
    return tuple(domains)


def _check_domain(own: Section, domain: Domain) -> None:
    if domain.text_column is not None and domain.from_target is not None:
        own.wrong(
            f"{own.place('text_column')} counts text as it stands, with from_target the "
            "target's answers count: leave one of them out",
            own.line_of("text_column"),
        )
    if domain.test_split is not None and domain.test is None:
        own.wrong(f"{own.place('test_split')} needs test", own.line_of("test_split"))
    if 0 < domain.weight < _LEAST_WEIGHT:
        own.wrong(
            f"{own.place('weight')} must be 0 or at least {_LEAST_WEIGHT:g}, got "
            f"{domain.weight:g}",
            own.line_of("weight"),
        )
    twice = next((name for name in domain.train if domain.train.count(name) > 1), None)
    if twice is not None:
        own.wrong(
            f"{own.place('train')} names {twice} twice, and it would count twice: leave one of "
            "them out, or give the domain a weight",
            own.line_of("train"),
        )


def _data(section: Section, key: str, name: str, folder: Path) -> str:
    """Return a data set as an absolute path, or as it is if it is a Hub id."""
    place = place_of(folder, name)
    if place is not None:
        if place.is_file() and not place.name.lower().endswith(SUFFIXES):
            section.wrong(
                f"{section.place(key)}: {place} must end in one of {', '.join(SUFFIXES)}",
                section.line_of(key),
            )
        return str(place)
    if not HUB_ID.fullmatch(name) or name.lower().endswith(SUFFIXES):
        section.wrong(
            f"{section.place(key)}: there is no file or folder {name!r:.200} (paths are relative "
            "to the recipe), and it is no Hub id",
            section.line_of(key),
        )
    return name


def _check_together(
    top: Section,
    domains: tuple[Domain, ...],
    measure: MeasureChoice | None,
    publish: PublishChoice | None,
) -> None:
    """Note what is possible field by field, but not together."""
    if domains and not any(domain.weight for domain in domains):
        top.wrong("at least one domain must have a weight above 0", top.line_of("domains"))
    for domain in domains:
        if measure is None or domain.test is not None:
            continue
        if domain.text_column is not None:
            top.wrong(
                f"the domain {domain.name!r} counts text as it stands, in which there are no "
                "prompts to measure: give test, or measure: false",
                top.line_at(f"domains.{domain.name}.text_column"),
            )
        elif domain.heldout == 0:
            top.wrong(
                f"the domain {domain.name!r} has neither test data nor a held-out share, so there "
                "is nothing to measure it on: give test, a heldout above 0, or measure: false",
                top.line_of("domains"),
            )
    if publish is not None and publish.create_pr and publish.private:
        top.wrong(
            "publish: create_pr proposes to a repository that exists, private is for a new one",
            top.line_of("publish"),
        )


def _check_trained_on(top: Section, domains: tuple[Domain, ...]) -> None:
    for domain in domains:
        if domain.text_column is not None:
            top.wrong(
                f"the domain {domain.name!r} counts text as it stands, in which no turn is an "
                "assistant's, so that no draft can be trained on it: leave text_column out, or "
                "cut a draft (draft.model)",
                top.line_at(f"domains.{domain.name}.text_column"),
            )
