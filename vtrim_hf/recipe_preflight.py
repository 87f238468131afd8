"""What can be known to be wrong with a recipe only by opening models and data: before any work."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from .chat_data import open_chat_data
from .chat_messages import MalformedRow
from .chat_rows import read_row
from .named_models import NamedModel
from .recipe import Domain, Recipe
from .recipe_plan import repo_id
from .recipe_yaml import Mistake, RecipeError
from .vocabulary import tokenizer_fingerprint

_LOOKED_AT = 1000  # rows, after which data without a readable one is given up


def open_models(recipe: Recipe) -> tuple[NamedModel, NamedModel]:
    """Return the recipe's target and draft at fixed commits, after opening all that it names.

    Configs, tokenizers and the first rows of all data are read, no weights.

    Raises:
        RecipeError: if a model or data set cannot be opened, or target and draft are no pair; all
            that is wrong is listed with its line.
    """
    mistakes: list[Mistake] = []

    def opened(place: str, what: Callable[..., object], *arguments: object) -> None:
        try:
            what(*arguments)
        except (OSError, ValueError, ImportError) as error:
            mistakes.append(Mistake(_line(recipe, place), f"{place}: {error}"))

    target = NamedModel(recipe.target.name, revision=recipe.target.revision)
    chosen = recipe.draft.model
    draft = NamedModel(chosen.name, revision=chosen.revision)
    for place, model in (("target", target), ("draft.model", draft)):
        opened(place, _open_model, model)
    if not mistakes:
        opened("draft.model", _check_pair, target, draft)
        opened("draft.layers", _check_layers, recipe, draft)
    for domain in recipe.domains:
        at = f"domains.{domain.name}"
        for name in domain.train:
            opened(f"{at}.train", _open_data, name, domain.split, domain)
        if domain.test is not None:
            opened(f"{at}.test", _open_data, domain.test, domain.test_split, domain)
    if mistakes:
        raise RecipeError(recipe.path, mistakes)
    return target, draft


def check_publishing(recipe: Recipe, scope: str | None, *, published_before: bool) -> None:
    """Make sure that a draft could be published now, before hours of work.

    Args:
        recipe: the recipe.
        scope: the draft's domain, or None for that of all domains.
        published_before: whether it was this run that made the repository.

    Raises:
        RecipeError: if nobody is logged in, or the repository may not be written to.
    """
    from huggingface_hub import HfApi

    from .hub_account import check_free, check_login, look_at

    wish = recipe.publish
    if wish is None:
        return
    name, api = repo_id(recipe, scope), HfApi(endpoint=wish.endpoint)
    try:
        token = check_login(api, None, name, create_pr=wish.create_pr)
        check_free(
            look_at(api, name, wish.revision, token),
            api.endpoint,
            exist_ok=wish.exist_ok or published_before,
            create_pr=wish.create_pr,
            private=wish.private,
            tag=None,
        )
    except (OSError, ValueError) as error:
        line = _line(recipe, "publish.repo_id")
        raise RecipeError(recipe.path, [Mistake(line, f"publish: {error}")]) from error


def _open_model(model: NamedModel) -> None:
    model.pin()
    _ = model.config, model.tokenizer, model.generation_config


def _check_pair(target: NamedModel, draft: NamedModel) -> None:
    ours, theirs = (tokenizer_fingerprint(model.tokenizer) for model in (target, draft))
    if ours != theirs:
        raise ValueError(
            f"{draft} has the tokenizer {theirs[:12]}, the target {target} has {ours[:12]}: a "
            "draft must share its target's tokenizer"
        )


def _check_layers(recipe: Recipe, draft: NamedModel) -> None:
    layers, most = recipe.draft.layers, draft.config.get_text_config().num_hidden_layers
    if layers is not None and layers > most:
        raise ValueError(f"{draft} has {most} layers, got {layers}")


def _open_data(name: str, split: str | None, domain: Domain) -> None:
    """Raise unless one of the first rows is a conversation."""
    reason = "it is empty"
    for row in itertools.islice(open_chat_data(name, split=split), _LOOKED_AT):
        if row.problem is not None:
            reason = f"{row.source}:{row.line}: {row.problem}"
            continue
        try:
            read_row(row.row, text_column=domain.text_column)
        except MalformedRow as error:
            reason = f"{row.source}:{row.line}: {error}"
        else:
            return
    raise ValueError(f"{name} holds no row that can be read: {reason}")


def _line(recipe: Recipe, place: str) -> int:
    return int(recipe.where(place).rpartition(":")[2])
