"""How each piece of a recipe is made: the library's steps, with places in a run's folder."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .named_models import NamedModel
from .recipe import Domain, DraftChoice, Recipe
from .recipe_measuring import check_prompts, measure
from .recipe_plan import Piece
from .recipe_publishing import publish
from .recipe_rows import KEPT_PROMPTS, divided, held_out_rows, line_of
from .recipe_training import data_on_hub, train
from .run_folder import RunFolder, files_in, replaced_folder
from .search_result import SEARCH_JSON
from .steps import (
    Answering,
    count_domains,
    make_latency,
    search_counts,
    trim_draft,
)
from .token_counts import TokenCounts
from .vocabulary_files import write_atomically


@dataclass
class Workshop:
    """Makes the pieces of a recipe.

    Attributes:
        recipe: the recipe.
        folder: where the products go.
        target: the recipe's target.
        draft: the model that is cut; None for a draft that is trained.
        progress: show bars on a terminal.
        say: takes remarks.
        tell: takes lines on how a long step goes on.
    """

    recipe: Recipe
    folder: RunFolder
    target: NamedModel
    draft: NamedModel | None
    progress: bool
    say: Callable[[str], None]
    tell: Callable[[str], None]

    def make(self, piece: Piece) -> tuple[list[Path], dict[str, Any]]:
        """Make a piece.

        Returns:
            The files of its product, and facts to record.
        """
        makers: dict[str, Callable[[Piece], tuple[list[Path], dict[str, Any]]]] = {
            "count": self._count,
            "search": self._search,
            "trim": self._trim,
            "train": lambda piece: train(self, piece),
            "measure": lambda piece: measure(self, piece),
            "publish": lambda piece: publish(self, piece),
        }
        try:
            return makers[piece.step](piece)
        finally:
            if self.draft is not None:
                self.draft.release()
            if piece.step == "train":  # it may have been moved to another device
                self.target.release()

    def _count(self, piece: Piece) -> tuple[list[Path], dict[str, Any]]:
        (domain,) = (one for one in self.recipe.domains if one.name == piece.scope)
        place = self.folder.place(piece)
        place.parent.mkdir(parents=True, exist_ok=True)
        files = [place]
        rows: list[Any] = []
        counts = count_domains(
            [(domain.name, name) for name in domain.train],
            self.target,
            answering=self._answering(domain),
            split=domain.split,
            text_column=domain.text_column,
            heldout=domain.heldout,
            strict=domain.strict,
            progress=self.progress,
            on_skipped=lambda row: self.say(f"skipped {row}"),
            on_counted=lambda _, counted: rows.append(counted),
        )
        files += self._kept_rows(domain, rows)
        if domain.test is None and self.recipe.measure is not None:
            heldout = self.folder.heldout_file(domain.name)
            check_prompts(self.recipe, domain, heldout, self.target.tokenizer)
        if not counts.total("search", domain.name):
            raise self.recipe.mistake(
                f"domains.{domain.name}.train",
                f"of {counts.conversations('all', domain.name)} conversations none is left to "
                "search on that has an assistant's token: give more data, or a smaller heldout",
            )
        counts.save(place)
        return files, {
            "tokens": counts.total("all", domain.name),
            "conversations": counts.conversations("all", domain.name),
            "skipped_rows": counts.skipped.number,
        }

    def _kept_rows(self, domain: Domain, counted: list[Any]) -> list[Path]:
        """Keep the conversations that later steps take; returns their files."""
        run, kept = self.folder, {}
        if self.recipe.train is not None:
            parts = divided(domain, counted)
            if not parts.training or not parts.evaluation:
                raise self.recipe.mistake(
                    f"domains.{domain.name}.train",
                    f"the {len(parts.training) + len(parts.evaluation)} conversations of "
                    f"{domain.name!r} that are not measured are too few to train a draft on some "
                    "and to choose its best checkpoint by another: give more data",
                )
            kept[run.training_file(domain.name)] = parts.training
            kept[run.evaluation_file(domain.name)] = parts.evaluation
            if domain.test is None:
                kept[run.heldout_file(domain.name)] = parts.measured
        elif domain.test is None:
            rows = itertools.islice(held_out_rows(domain, counted), KEPT_PROMPTS)
            kept[run.heldout_file(domain.name)] = tuple(line_of(row) for row in rows)
        for path, lines in kept.items():
            write_atomically(path, "".join(lines).encode("utf-8", "surrogatepass"))
        return list(kept)

    def _answering(self, domain: Domain) -> Answering | None:
        wish = domain.from_target
        if wish is None:
            return None
        # Answers are known by their prompts: more data or another limit adds to the same file.
        key = json.dumps([self.target.identity, wish.max_new_tokens, wish.dtype])
        name = f"{hashlib.sha256(key.encode()).hexdigest()[:12]}.safetensors"
        return Answering(
            self.folder.path / "count" / name,
            wish.limit,
            wish.max_new_tokens,
            wish.batch_size,
            wish.dtype,
        )

    def counts(self, scope: str | None) -> TokenCounts:
        """Return what was counted for a draft."""
        domains = self.recipe.domains_of(scope)
        parts = [
            TokenCounts.load(self.folder.place(Piece("count", domain.name, (), {})))
            for domain in domains
        ]
        weights = {domain.name: domain.weight for domain in domains}
        several = len(domains) > 1 and set(weights.values()) != {1.0}
        return TokenCounts.merge(*parts, weights=weights if several else None)

    def _search(self, piece: Piece) -> tuple[list[Path], dict[str, Any]]:
        wish = self.recipe.search
        floors = {
            domain.name: domain.floor
            for domain in self.recipe.domains_of(piece.scope)
            if domain.floor is not None
        }
        draft = self.recipe.draft
        shape = (
            {"layers": draft.layers}
            if isinstance(draft, DraftChoice)
            else {"mlp_width": draft.mlp_width}
        )
        result = search_counts(
            self.counts(piece.scope),
            self.target,
            make_latency(self.target, self.draft, cost=wish.cost, **shape),
            keep=wish.keep,
            preset="paper" if wish.preset is not None else None,
            alpha=wish.alpha,
            min_coverage=wish.min_coverage,
            domain_floors=floors or None,
            k_min=wish.k_min,
            k_max=wish.k_max,
            multiple_of=wish.multiple_of,
            method=wish.method,
            trials=wish.trials,
            seed=wish.seed,
            progress=self.progress,
        )
        place = self.folder.place(piece)
        with replaced_folder(place) as new:
            result.save(new / SEARCH_JSON)
            result.vocabulary.save(new)
            self.plot(result, new / "search.png")
        for domain in result.weak_domains:
            self.say(f"the vocabulary serves {domain} worse than the rest: see report.md")
        return _product(place), {"k": result.k, "coverage": result.coverage}

    def _trim(self, piece: Piece) -> tuple[list[Path], dict[str, Any]]:
        wish = self.recipe.draft
        if self.draft is None or not isinstance(wish, DraftChoice):
            raise ValueError("this recipe cuts nothing: its draft is trained")
        made = trim_draft(
            self.draft,
            self.folder.folder_of("search", piece.scope),
            self.target,
            layers=wish.layers,
            dtype=wish.dtype,
            draft_length=wish.draft_length,
            counts=self.counts(piece.scope),
            datasets=data_on_hub(self.recipe, piece.scope),
        )
        place = self.folder.place(piece)
        with replaced_folder(place) as new:
            made.save_pretrained(new)
            self.target.tokenizer.save_pretrained(new)
        return _product(place), {"parameters": made.num_parameters()}

    def plot(self, result: Any, path: Path) -> None:
        """Draw a result, if there is what draws it."""
        try:
            result.plot(path)
        except ImportError as error:
            self.say(f"no plot: {error}")


def _product(folder: Path) -> list[Path]:
    return [path for path in files_in(folder) if path.suffix != ".png"]
