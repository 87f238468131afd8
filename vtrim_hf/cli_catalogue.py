"""`vtrim catalogue` and `vtrim recommend`: which published drafts there are, and which fits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from .card_words import is_seen
from .cli_shared import (
    MODEL_NAME,
    AsJson,
    Debug,
    Quiet,
    answers_mistakes,
    out,
    remarks,
)
from .family_index import covered_text
from .named_models import NamedModel
from .published_draft import Covered, PublishedDraft

Domain = Annotated[str | None, typer.Option(help="What the draft shall be good at.")]
Author = Annotated[str | None, typer.Option(help="User or organization that published it.")]
Licence = Annotated[str | None, typer.Option("--license", help="Only of this licence.")]
Largest = Annotated[int | None, typer.Option("--k-max", min=1, help="Most kept ids.")]
Limit = Annotated[int, typer.Option(min=1, help="Rows at most.")]
Endpoint = Annotated[str | None, typer.Option(help="URL of another Hub.")]


@answers_mistakes
def catalogue(
    target: Annotated[
        str | None, typer.Option(help="Only drafts for this model: its Hub id, or `smollm2`.")
    ] = None,
    domain: Domain = None,
    author: Author = None,
    k_max: Largest = None,
    license_: Licence = None,
    limit: Limit = 100,
    endpoint: Endpoint = None,
    json_: AsJson = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """List published drafts, the best first; no weights are downloaded.

    Those that counted the domain come before those that only have its tag; then the more that is
    covered in whole per cents, the faster, the smaller.

    Example: `vtrim catalogue --target HuggingFaceTB/SmolLM2-1.7B-Instruct --domain sql`
    """
    from .catalogue import find_drafts

    found = find_drafts(
        None if target is None else NamedModel(target, is_folder=False).hub_id,
        domain,
        author=author,
        k_max=k_max,
        license=license_,
        endpoint=endpoint,
        limit=limit,
    )
    if json_:
        _as_json({"drafts": [draft.facts() for draft in found]})
        return
    if not found:
        out.print("no published draft fits")
        return
    table = _table(
        "draft", "target", "domains", "k", "coverage", "acceptance length", "speed-up", "licence"
    )
    for draft in found:
        known = draft.covered(domain) or draft.overall
        row = (
            draft.name,
            draft.target,
            ", ".join(draft.domains),
            _size(draft),
            covered_text(known),
            None if draft.acceptance_length is None else f"{draft.acceptance_length:.2f}",
            _speedup(draft),
            draft.license,
        )
        table.add_row(*map(plain_text, row))
    out.print(table)
    out.print(
        "coverage is of held-out data where there was any; speed-ups are over the target alone, "
        "each on its own machine (--json names it)",
        soft_wrap=True,
    )


@answers_mistakes
def recommend(
    data: Annotated[
        list[str],
        typer.Option(help="JSON lines, Parquet, folder or Hub id of chat data; repeatable."),
    ],
    target: Annotated[
        str, typer.Option(help=f"The model to draft for: {MODEL_NAME}.")
    ] = "smollm2",
    domain: Domain = None,
    author: Author = None,
    k_max: Largest = None,
    license_: Licence = None,
    split: Annotated[
        str | None, typer.Option(help="Split of a data set that has several.")
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Count this column's text.")] = None,
    limit: Limit = 20,
    endpoint: Endpoint = None,
    json_: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Score published drafts on your own data by coverage alone; no weights are downloaded.

    Example: `vtrim recommend --target HuggingFaceTB/SmolLM2-1.7B-Instruct --data mine.jsonl`
    """
    from .recommending import recommend_drafts

    skipped: list[Any] = []
    found = recommend_drafts(
        NamedModel(target),
        data,
        domain=domain,
        author=author,
        k_max=k_max,
        license=license_,
        split=split,
        text_column=text_column,
        endpoint=endpoint,
        limit=limit,
        progress=not quiet,
        on_skipped=skipped.append,
    )
    for row in skipped:
        remarks.print(f"skipped {row}", style="yellow", markup=False)
    if json_:
        rows = [
            {
                "coverage_of_data": one.coverage,
                "coverage_interval": list(one.interval),
                "tokens": one.tokens,
                **one.draft.facts(),
            }
            for one in found
        ]
        _as_json({"target": target, "data": data, "drafts": rows})
        return
    table = _table("draft", "covers of your data", "k", "domains", "speed-up", "licence")
    for one in found:
        row = (
            one.draft.name,
            covered_text(Covered(one.coverage, one.interval)),
            _size(one.draft),
            ", ".join(one.draft.domains),
            _speedup(one.draft),
            one.draft.license,
        )
        table.add_row(*map(plain_text, row))
    out.print(table)
    best = found[0].draft
    names = ", ".join(Path(name).name for name in data)
    out.print(plain_text(f"{found[0].tokens:,} tokens of {names} were counted; load the first:"))
    out.print(
        plain_text(
            f'TrimmedDraftForCausalLM.from_pretrained("{best.repo_id}", revision="{best.commit}")'
        ),
        soft_wrap=True,
    )


def _table(*names: str) -> Table:
    table = Table()
    for place, name in enumerate(names):
        # The first is what people copy: others give way on a narrow terminal.
        table.add_column(name, overflow="fold", no_wrap=place == 0)
    return table


def plain_text(value: Any) -> Text:
    """Return a text that neither colours nor moves anything, whoever published it."""
    shown = "" if value is None else str(value)
    return Text("".join(sign if is_seen(sign) else "?" for sign in shown))


def _size(draft: PublishedDraft) -> str:
    return f"{draft.k:,} ({100 * draft.share_of_vocabulary:.1f} %)"


def _speedup(draft: PublishedDraft) -> str | None:
    if draft.speedup is None:
        return None
    text = f"{draft.speedup:.2f}"
    if draft.speedup_interval is not None:
        low, high = draft.speedup_interval
        text += f" ({low:.2f} to {high:.2f})"
    return text


def _as_json(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts, indent=2, allow_nan=False) + "\n")
