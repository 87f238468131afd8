"""How each piece of a recipe is made: the library's steps, with places in a run's folder."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .batch_counting import CountRules
from .chat_data import open_chat_data
from .chat_messages import MalformedRow
from .chat_rows import RECORD_COLUMN, read_row
from .decode_report import DecodeReport
from .measuring_step import FullDraft
from .named_models import NamedModel
from .recipe import Domain, Recipe, is_place
from .recipe_plan import Piece, endpoint_of, repo_id
from .recipe_yaml import Mistake, RecipeError
from .run_folder import RunFolder, files_in, replaced_folder
from .search_result import SearchResult
from .steps import (
    REPORT_JSON,
    SEARCH_JSON,
    Answering,
    count_domains,
    make_latency,
    measure_draft,
    read_prompts,
    search_counts,
    trim_draft,
)
from .token_counts import TokenCounts
from .vocabulary_files import write_atomically

_KEPT_PROMPTS = 1000  # held-out conversations of a domain that has no test data
PUBLISHED_JSON = "published.json"


@dataclass
class Workshop:
    """Makes the pieces of a recipe.

    Attributes:
        recipe: the recipe.
        folder: where the products go.
        target: the recipe's target.
        draft: the model that is cut.
        progress: show bars on a terminal.
        say: takes remarks.
    """

    recipe: Recipe
    folder: RunFolder
    target: NamedModel
    draft: NamedModel
    progress: bool
    say: Callable[[str], None]

    def make(self, piece: Piece) -> tuple[list[Path], dict[str, Any]]:
        """Make a piece.

        Returns:
            The files of its product, and facts to record.
        """
        makers: dict[str, Callable[[Piece], tuple[list[Path], dict[str, Any]]]] = {
            "count": self._count,
            "search": self._search,
            "trim": self._trim,
            "measure": self._measure,
            "publish": self._publish,
        }
        try:
            return makers[piece.step](piece)
        finally:
            self.draft.release()

    def _count(self, piece: Piece) -> tuple[list[Path], dict[str, Any]]:
        (domain,) = (one for one in self.recipe.domains if one.name == piece.scope)
        place = self.folder.place(piece)
        place.parent.mkdir(parents=True, exist_ok=True)
        files, heldout = [place], self.folder.heldout_file(domain.name)
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
        if domain.test is None:
            kept = itertools.islice(self._held_out(domain, rows), _KEPT_PROMPTS)
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in kept]
            write_atomically(heldout, "".join(lines).encode("utf-8", "surrogatepass"))
            files.append(heldout)
            if self.recipe.measure is not None:
                self._check_prompts(domain, heldout)
        if not counts.total("search", domain.name):
            raise self._mistake(
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

    def _check_prompts(self, domain: Domain, heldout: Path) -> None:
        """Say now, and not after hours of other work, that there is nothing to measure."""
        try:
            read_prompts(heldout, self.target.tokenizer, 1)
        except ValueError as error:
            raise self._mistake(
                f"domains.{domain.name}",
                f"none of the held-out conversations of {domain.name!r} is a prompt to measure "
                "it on: give test, more data or a greater heldout, or measure: false",
            ) from error

    def _mistake(self, place: str, text: str) -> RecipeError:
        return RecipeError(self.recipe.path, [Mistake(self.recipe.line(place), text)])

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

    def _held_out(self, domain: Domain, counted: list[Any]) -> Iterator[Any]:
        """Give the rows that the counts hold out: no prompt is one that was searched on."""
        rules = CountRules(self.target.vocab_size, heldout=domain.heldout)
        for data in counted:
            split = None if domain.from_target is not None else domain.split
            for row in open_chat_data(data, split=split):
                is_record = isinstance(row.row, Mapping) and RECORD_COLUMN in row.row
                if row.problem is not None or is_record:
                    continue
                try:
                    conversation = read_row(row.row, text_column=domain.text_column)
                    if rules.place(conversation.digest()) >= rules.blocks:
                        yield row.row
                except MalformedRow:
                    continue

    def _counts(self, scope: str | None) -> TokenCounts:
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
        result = search_counts(
            self._counts(piece.scope),
            self.target,
            make_latency(self.target, self.draft, cost=wish.cost, layers=self.recipe.draft.layers),
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
            self._plot(result, new / "search.png")
        for domain in result.weak_domains:
            self.say(f"the vocabulary serves {domain} worse than the rest: see report.md")
        return _product(place), {"k": result.k, "coverage": result.coverage}

    def _trim(self, piece: Piece) -> tuple[list[Path], dict[str, Any]]:
        wish = self.recipe.draft
        made = trim_draft(
            self.draft,
            self.folder.folder_of("search", piece.scope),
            self.target,
            layers=wish.layers,
            dtype=wish.dtype,
            draft_length=wish.draft_length,
            counts=self._counts(piece.scope),
            datasets=[
                name
                for domain in self.recipe.domains_of(piece.scope)
                for name in domain.train
                if not is_place(name)
            ],
        )
        place = self.folder.place(piece)
        with replaced_folder(place) as new:
            made.save_pretrained(new)
            self.target.tokenizer.save_pretrained(new)
        return _product(place), {"parameters": made.num_parameters()}

    def _measure(self, piece: Piece) -> tuple[list[Path], dict[str, Any]]:
        wish = self.recipe.measure
        if wish is None:
            raise ValueError("this recipe measures nothing")
        prompts: list[Any] = []
        ranges: dict[str, list[int]] = {}
        for domain in self.recipe.domains_of(piece.scope):
            data: Any = domain.test
            if data is None:  # counted, perhaps, when nothing was to be measured yet
                data = self.folder.heldout_file(domain.name)
                self._check_prompts(domain, data)
            found = read_prompts(
                data, self.target.tokenizer, wish.prompts, split=domain.test_split
            )
            if len(found) < wish.prompts:
                self.say(f"{domain.name} has only {len(found)} prompts of {wish.prompts}")
            ranges[domain.name] = [len(prompts), len(prompts) + len(found)]
            prompts += found
        cut = self.recipe.draft
        full = FullDraft(
            self.draft,
            self.target,
            layers=cut.layers,
            dtype=cut.dtype,
            draft_length=cut.draft_length,
        )
        place = self.folder.place(piece)
        report = measure_draft(
            self.target,
            NamedModel(str(self.folder.folder_of("trim", piece.scope)), is_folder=True),
            prompts,
            compare={"full": full} if wish.compare_full else {},
            max_new_tokens=wish.max_new_tokens,
            draft_length=wish.draft_length,
            dtype=wish.dtype,
            plain_dtypes=wish.plain_dtypes,
            output=place,
            progress=self.progress,
            on_resumed=lambda done: self.say(f"{done} prompts were measured before"),
        )
        self._plot(report, place / "decode_report.png")
        # Of calls that were given up: nobody else is at work here, for the folder is locked.
        for stale in place.glob("*.rows.jsonl"):
            stale.unlink()
        return [place / REPORT_JSON], {"prompts": ranges}

    def _publish(self, piece: Piece) -> tuple[list[Path], dict[str, Any]]:
        from .hub import publish

        wish = self.recipe.publish
        if wish is None:
            raise ValueError("this recipe publishes nothing")
        name = repo_id(self.recipe, piece.scope)
        search = self.folder.folder_of("search", piece.scope) / SEARCH_JSON
        report = self.folder.folder_of("measure", piece.scope) / REPORT_JSON
        endpoint = endpoint_of(self.recipe)
        with self.folder.publishing(endpoint, name, proposed=wish.create_pr) as own:
            published = publish(
                self.folder.folder_of("trim", piece.scope),
                name,
                search=SearchResult.load(search),
                report=DecodeReport.load(report) if self.recipe.measure is not None else None,
                counts=self._counts(piece.scope),
                license=wish.license,
                private=wish.private,
                revision=wish.revision,
                create_pr=wish.create_pr,
                exist_ok=wish.exist_ok or own,
                endpoint=endpoint,
                progress=self.progress,
            )
        facts = {
            "endpoint": endpoint,
            "repo_id": name,
            "url": published.url,
            "commit": published.commit,
            "revision": published.revision,
        }
        place = self.folder.place(piece)
        with replaced_folder(place) as new:
            text = json.dumps(facts, indent=2) + "\n"
            (new / PUBLISHED_JSON).write_text(text, encoding="utf-8")
        return _product(place), facts

    def _plot(self, result: Any, path: Path) -> None:
        try:
            result.plot(path)
        except ImportError as error:
            self.say(f"no plot: {error}")


def _product(folder: Path) -> list[Path]:
    return [path for path in files_in(folder) if path.suffix != ".png"]
