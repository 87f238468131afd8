"""What a recipe makes, piece by piece, and everything that goes into each piece.

A piece is one step for one domain (count) or one draft (the later steps). What goes in is plain
JSON: the contents of data, models, settings, the format of our own code, and the products of the
pieces before it. If none of it changed, the piece need not be made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .chat_data import open_chat_data
from .counts_file import COUNTING
from .counts_file import FORMAT as COUNTS_FORMAT
from .named_models import NamedModel
from .recipe import STEPS, Domain, DraftChoice, Recipe
from .recipe_rows import DIVIDING

FORMATS = {
    "count": [1, COUNTING, COUNTS_FORMAT],
    "search": 1,
    "trim": 1,
    "train": 2,
    "measure": 1,
}
"""Raise a step's number when it would make something else of the same inputs."""


@dataclass(frozen=True)
class Piece:
    """One step for one domain or one draft.

    Attributes:
        step: one of `recipe.STEPS`.
        scope: the domain or, from the search on, the draft's domain; None for the one draft of
            all domains.
        needs: names of the pieces whose products go in.
        inputs: everything else that goes in, as JSON values.
    """

    step: str
    scope: str | None
    needs: tuple[str, ...]
    inputs: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name, such as `count sql`, or `search` where there is one for all domains."""
        return _name(self.step, self.scope)

    def fingerprint(self, products: Mapping[str, str]) -> str:
        """Return the sha256 (hex) of everything that goes in.

        Args:
            products: hash of the product of each piece, by name.
        """
        before = {name: products[name] for name in self.needs}
        text = json.dumps([self.step, self.scope, self.inputs, before], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def plan(recipe: Recipe, target: NamedModel, draft: NamedModel | None) -> tuple[Piece, ...]:
    """Return all pieces of a recipe, each after those that it needs.

    Args:
        recipe: the recipe.
        target: its target, at a fixed commit.
        draft: the model that is cut, at a fixed commit; None for a draft that is trained.

    Raises:
        ValueError: or FileNotFoundError, if data cannot be read.
    """
    data = {domain.name: _identities(domain) for domain in recipe.domains}
    pieces = [
        Piece(
            "count", domain.name, (), _count_inputs(recipe, domain, target, data[domain.name][0])
        )
        for domain in recipe.domains
    ]
    cut = _cut_inputs(recipe, draft)
    for scope in recipe.scopes:
        domains = recipe.domains_of(scope)
        counts = tuple(_name("count", domain.name) for domain in domains)
        made = {"format": FORMATS[recipe.making], "target": target.identity}
        made |= _train_inputs(recipe) if cut is None else {"draft": cut}
        pieces += [
            Piece("search", scope, counts, _search_inputs(recipe, scope, target, cut)),
            Piece(recipe.making, scope, (*counts, _name("search", scope)), made),
        ]
        if recipe.measure is not None:
            tests = {domain.name: data[domain.name][1] for domain in domains}
            pieces.append(_measured(recipe, scope, target, tests, cut))
        if recipe.publish is not None:
            pieces.append(_published(recipe, scope))
    return tuple(sorted(pieces, key=lambda piece: STEPS.index(piece.step)))


def repo_id(recipe: Recipe, scope: str | None) -> str:
    """Return the repository that a draft goes to."""
    if recipe.publish is None:
        raise ValueError("this recipe publishes nothing: it has no section publish")
    return recipe.publish.repo_id.replace("{domain}", scope or recipe.domains[0].name)


def endpoint_of(recipe: Recipe) -> str:
    """Return the Hub that drafts go to: the recipe's, or else the one of this environment."""
    from huggingface_hub import HfApi

    wish = None if recipe.publish is None else recipe.publish.endpoint
    return str(HfApi(endpoint=wish).endpoint).rstrip("/")


def _name(step: str, scope: str | None) -> str:
    return step if scope is None else f"{step} {scope}"


def _identities(domain: Domain) -> tuple[list[str], str | None]:
    """Return what tells the contents of a domain's train and test data apart."""

    def identity(name: str, split: str | None) -> str:
        source = open_chat_data(name, split=split)
        if source.identity is None:
            raise ValueError(f"the data of {name} cannot be told apart: download it to a file")
        return source.identity()

    test = None if domain.test is None else identity(domain.test, domain.test_split)
    return [identity(name, domain.split) for name in domain.train], test


def _cut_inputs(recipe: Recipe, draft: NamedModel | None) -> dict[str, Any] | None:
    """Return what decides a draft that is cut."""
    wish = recipe.draft
    if draft is None or not isinstance(wish, DraftChoice):
        return None
    return {
        "model": draft.identity,
        "layers": wish.layers,
        "dtype": wish.dtype,
        "draft_length": wish.draft_length,
    }


def _train_inputs(recipe: Recipe) -> dict[str, Any]:
    """Return what decides a draft that is trained, besides its data and vocabulary."""
    from .recipe_training import training_settings
    from .training_workplace import defaults_beside

    draft = json.loads(json.dumps(asdict(recipe.draft)))
    wish = recipe.train
    if wish is None:
        return dict(draft)
    settings = asdict(wish)
    # Where features are kept changes nothing in them, nor does a log.
    for name in ("feature_cache", "tensorboard"):
        del settings[name]
    # What a recipe leaves out, the library decides, and otherwise one day.
    return {**draft, **settings, "defaults": defaults_beside(training_settings(wish))}


def _count_inputs(
    recipe: Recipe, domain: Domain, target: NamedModel, data: list[str]
) -> dict[str, Any]:
    answering = domain.from_target
    return {
        "format": FORMATS["count"],
        "target": target.identity,
        "data": data,
        "split": domain.split,
        "text_column": domain.text_column,
        "heldout": domain.heldout,
        "strict": domain.strict,
        # The batch size changes nothing but the pace.
        "from_target": None
        if answering is None
        else {key: value for key, value in asdict(answering).items() if key != "batch_size"},
        "keeps_prompts": domain.test is None,
        **({} if recipe.train is None else {"keeps_training_data": DIVIDING}),
    }


def _search_inputs(
    recipe: Recipe, scope: str | None, target: NamedModel, cut: Mapping[str, Any] | None
) -> dict[str, Any]:
    domains = recipe.domains_of(scope)
    settings = {key: list(v) if key == "keep" else v for key, v in asdict(recipe.search).items()}
    width = getattr(recipe.draft, "mlp_width", None)
    trained = {"body": "eagle3", **({} if width is None else {"mlp_width": width})}
    return {
        "format": FORMATS["search"],
        "target": target.identity,
        "draft": trained if cut is None else {key: cut[key] for key in ("model", "layers")},
        **settings,
        "floors": {domain.name: domain.floor for domain in domains},
        "weights": {domain.name: domain.weight for domain in domains} if len(domains) > 1 else {},
    }


def _measured(
    recipe: Recipe,
    scope: str | None,
    target: NamedModel,
    tests: Mapping[str, str | None],
    cut: Mapping[str, Any] | None,
) -> Piece:
    settings = asdict(recipe.measure) if recipe.measure is not None else {}
    goal = ("min_speedup", "compare_full")  # a goal is held against what was measured
    # Prompts may come from the counts, and those that were trained on are passed over.
    trains = recipe.train is not None
    counts = [_name("count", name) for name, test in tests.items() if trains or test is None]
    full = "extended" if cut is None else dict(cut)
    return Piece(
        "measure",
        scope,
        (*counts, _name(recipe.making, scope)),
        {
            "format": FORMATS["measure"],
            "target": target.identity,
            "test": dict(tests),
            "test_splits": {d.name: d.test_split for d in recipe.domains_of(scope)},
            **json.loads(json.dumps({k: v for k, v in settings.items() if k not in goal})),
            "full": full if settings.get("compare_full") else None,
        },
    )


def _published(recipe: Recipe, scope: str | None) -> Piece:
    if recipe.publish is None:
        raise ValueError("this recipe publishes nothing: it has no section publish")
    settings = asdict(recipe.publish)
    del settings["despite_missed_goal"], settings["exist_ok"]
    if settings["index"] is None:  # so that the one draft of a recipe is as it was without
        del settings["index"]
    needs = ["search", recipe.making, *(["measure"] if recipe.measure is not None else [])]
    return Piece(
        "publish",
        scope,
        tuple(_name(step, scope) for step in needs),
        {**settings, "repo_id": repo_id(recipe, scope), "endpoint": endpoint_of(recipe)},
    )
