"""What can be known to be wrong with a recipe only by opening models and data: before any work."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .chat_data import ChatSource, open_chat_data
from .chat_messages import MalformedRow
from .chat_rendering import ChatRenderer
from .chat_rows import read_row
from .named_models import NamedModel
from .prompt_reading import PromptReader
from .recipe import Domain, DraftChoice, ModelChoice, Recipe, is_place
from .recipe_trainable import check_settings, check_states, check_trainable
from .recipe_yaml import Mistake, RecipeError
from .vocabulary import tokenizer_fingerprint

_LOOKED_AT = 1000  # rows, after which data without a readable one is given up


def open_models(recipe: Recipe) -> tuple[NamedModel, NamedModel | None]:
    """Return the recipe's target and draft at fixed commits, after opening all that it names.

    The draft is the model that is cut; None for one that is trained.

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
            mistakes.append(Mistake(recipe.line(place), f"{place}: {error}"))

    def named(chosen: ModelChoice) -> NamedModel:
        return NamedModel(chosen.name, revision=chosen.revision, is_folder=is_place(chosen.name))

    target, wish, draft = named(recipe.target), recipe.draft, None
    opened("target", _open_model, target)
    if isinstance(wish, DraftChoice):
        draft = named(wish.model)
        opened("draft.model", _open_model, draft)
        if not mistakes:
            opened("draft.model", _check_pair, target, draft)
            opened("draft.layers", _check_layers, wish, draft)
    elif not mistakes:
        opened("draft.layers", check_states, target, wish.layers)
        opened("draft.body", check_trainable, target)
    if recipe.train is not None:
        opened("train", check_settings, recipe.train)
    if not mistakes:
        opened("search", _check_sizes, recipe, target)
    tokenizer = None if mistakes else target.tokenizer
    for domain in recipe.domains:
        at = f"domains.{domain.name}"
        for name in domain.train:
            asked = domain.from_target is not None
            answered = recipe.train is not None and not asked
            checks = (tokenizer if asked else None, answered)
            opened(f"{at}.train", _open_train, name, domain, *checks)
        if domain.test is not None:
            asked = recipe.measure is not None
            known = (domain.test, domain.test_split)
            opened(f"{at}.test", _open_test, *known, tokenizer if asked else None)
    if mistakes:
        raise RecipeError(recipe.path, mistakes)
    return target, draft


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


def _check_layers(wish: DraftChoice, draft: NamedModel) -> None:
    layers, most = wish.layers, draft.config.get_text_config().num_hidden_layers
    if layers is not None and layers > most:
        raise ValueError(f"{draft} has {most} layers, got {layers}")


def _check_sizes(recipe: Recipe, target: NamedModel) -> None:
    """Raise if no size could be chosen, whatever is counted."""
    from .required_tokens import required_token_ids

    wish, width = recipe.search, target.vocab_size
    for name in ("k_min", "multiple_of"):
        value = getattr(wish, name)
        if value is not None and value > width:
            raise ValueError(f"{name} is {value:,}, the target {target} has {width:,} ids in all")
    if wish.preset is not None:
        return
    required: Any = required_token_ids(
        target.tokenizer, target.generation_config, extra=wish.keep, vocab_size=width
    )
    number = len(tuple(required))
    most = width if wish.k_max is None else min(wish.k_max, width)
    if most < number:
        raise ValueError(
            f"k_max is {most:,}, and {number:,} ids must stay: those that every draft of {target} "
            "needs, and those of keep"
        )
    step = wish.multiple_of or 1
    least = max(number, wish.k_min or 1)
    if most // step * step < least:
        raise ValueError(
            f"no multiple of {step:,} lies between {least:,} and {most:,}: choose a smaller "
            "multiple_of, or another k_min and k_max"
        )


def _open_train(name: str, domain: Domain, tokenizer: Any, answered: bool) -> None:
    source = _opened(name, domain.split)
    _check_rows(source, name, domain.text_column, answered=answered)
    if tokenizer is not None:
        _check_prompts(source, name, tokenizer)


def _open_test(name: str, split: str | None, tokenizer: Any) -> None:
    source = _opened(name, split)
    _check_rows(source, name, None)
    if tokenizer is not None:
        _check_prompts(source, name, tokenizer)


def _opened(name: str, split: str | None) -> ChatSource:
    if not is_place(name) and Path(name).exists():
        raise ValueError(
            f"{name} is a Hub id, and {Path.cwd()} holds a file or folder of that name, which "
            "would be read instead: start this in another folder"
        )
    return open_chat_data(name, split=split)


def _check_rows(
    source: ChatSource, name: str, text_column: str | None, *, answered: bool = False
) -> None:
    """Raise unless one of the first rows is a conversation, with an answer if there must be."""
    reason, unanswered = "it is empty", 0
    for row in itertools.islice(source, _LOOKED_AT):
        if row.problem is not None:
            reason = f"{row.source}:{row.line}: {row.problem}"
            continue
        try:
            found = read_row(row.row, text_column=text_column)
        except MalformedRow as error:
            reason = f"{row.source}:{row.line}: {error}"
            continue
        if found.has_answer or not answered:
            return
        unanswered += 1
    if unanswered:
        raise ValueError(
            f"{name} holds no answer that a draft could be trained on, in {unanswered} rows: give "
            "data with an assistant's turns, or let the target answer (from_target)"
        )
    raise ValueError(f"{name} holds no row that can be read: {reason}")


def _check_prompts(source: ChatSource, name: str, tokenizer: Any) -> None:
    """Raise unless one of the first rows has a prompt."""
    reader = PromptReader(source, ChatRenderer(tokenizer), sys.maxsize, strict=False)
    if all(prompt is None for prompt in itertools.islice(reader, _LOOKED_AT)):
        first = next(iter(reader.skipped), "no row")
        raise ValueError(f"{name} holds no prompt to answer: {first}")
