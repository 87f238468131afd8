"""`vtrim publish`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from .cli_shared import AsJson, Debug, Quiet, answers_mistakes, out, remarks, show
from .named_models import NamedModel


class Layout(StrEnum):
    """How a family lies on the Hub."""

    repositories = "repositories"
    revisions = "revisions"


OPTIONS = {
    "exist_ok=True": "--exist-ok",
    "create_pr=True": "--create-pr",
    "private=True": "--private",
    "private=False": "--public",
    "license_name=": "--license-name",
    "license_link=": "--license-link",
    "license='other'": "--license other",
    "license=": "--license",
    "revision=": "--revision",
    "tag=": "--tag",
    "max_shard_size=": "--max-shard-size",
    "max_shard_size must": "--max-shard-size must",
    "target_id must": "--target must",
    "draft_id must": "--source must",
    "layout=": "--layout ",
    "index=": "--index",
    "record=": "--record",
}
"""What the functions behind this command call their arguments, and how they are said here."""


@answers_mistakes
def publish(
    draft: Annotated[
        Path,
        typer.Argument(
            help="Folder of the draft, as `vtrim trim` wrote it; or of a family, a draft a domain."
        ),
    ],
    repo_id: Annotated[
        str,
        typer.Argument(
            help="Where to: NAMESPACE/NAME; of a family with `{domain}` in it, or see --layout."
        ),
    ],
    license_: Annotated[
        str | None,
        typer.Option(
            "--license",
            help="Of the weights, as the Hub names it; else the card of the cut model says it.",
        ),
    ] = None,
    license_name: Annotated[
        str | None, typer.Option(help="Its own name, with `--license other`.")
    ] = None,
    license_link: Annotated[
        str | None, typer.Option(help="Where its text is, with `--license other`.")
    ] = None,
    search: Annotated[
        Path | None, typer.Option(help="search.json of `vtrim search`, for the card.")
    ] = None,
    counts: Annotated[
        Path | None, typer.Option(help="What `vtrim count` wrote, for the card.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="decode_report.json of `vtrim measure`, for the card.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Hub id of the target, or `smollm2`.")] = None,
    source: Annotated[str | None, typer.Option(help="Hub id of the model that was cut.")] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Hub id of data that was counted; repeatable.")
    ] = None,
    language: Annotated[
        list[str] | None, typer.Option(help="Code of a language, for the card; repeatable.")
    ] = None,
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="Of a new repository.")
    ] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Add a commit to a repository that exists.")
    ] = False,
    revision: Annotated[str | None, typer.Option(help="Branch to commit to.")] = None,
    create_pr: Annotated[
        bool, typer.Option("--create-pr", help="Open a pull request instead.")
    ] = False,
    tag: Annotated[str | None, typer.Option(help="Name for a tag on the commit.")] = None,
    message: Annotated[str | None, typer.Option(help="Of the commit.")] = None,
    max_shard_size: Annotated[
        str | None, typer.Option(help="Largest file of weights, such as `2GB`.")
    ] = None,
    layout: Annotated[
        Layout | None,
        typer.Option(help="Publish a family: a repository a domain, or a branch a domain."),
    ] = None,
    index: Annotated[
        str | None, typer.Option(help="Repository that lists a family's drafts.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            help="File that notes what was published of a family, to go on from after a cut; else "
            "one in its folder."
        ),
    ] = None,
    endpoint: Annotated[str | None, typer.Option(help="URL of another Hub.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, change nothing on the Hub.")
    ] = False,
    json_: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Publish a draft on the Hub, card, facts and code included, in one commit; or a family.

    Who publishes is the user of `hf auth login`, or of the token in `HF_TOKEN`.

    Example: `vtrim publish draft me/my-sql-draft --license apache-2.0 --report
    report/decode_report.json`

    A run's drafts, one a domain: `vtrim publish runs/mine "me/smollm2-{domain}-draft"`
    """
    from .decode_report import DecodeReport
    from .hub import publish as publish_draft
    from .search_result import SearchResult
    from .token_counts import TokenCounts

    fields = {"license": license_, "license_name": license_name, "license_link": license_link}
    said = {name: text for name, text in fields.items() if text is not None}
    if layout is not None or "{domain}" in repo_id:
        of_one = {
            "--search": search,
            "--counts": counts,
            "--report": report,
            "--source": source,
            "--dataset": dataset or None,
            "--revision": revision,
            "--create-pr": create_pr or None,
            "--tag": tag,
            "--message": message,
        }
        given = [name for name, value in of_one.items() if value is not None]
        if given:
            raise ValueError(
                f"{', '.join(given)} is about one draft, a family has several: leave it out, or "
                "publish the drafts one by one"
            )
        with _in_options():
            _publish_family(
                draft,
                repo_id,
                json_,
                layout=None if layout is None else layout.value,
                index=index,
                record=record,
                license=said or None,
                target_id=_hub_id(target),
                language=language or None,
                private=private,
                exist_ok=exist_ok,
                max_shard_size=max_shard_size,
                endpoint=endpoint,
                dry_run=dry_run,
                progress=not quiet,
            )
        return
    for option, value in (("--index lists", index), ("--record notes", record)):
        if value is not None:
            raise ValueError(
                f"{option} a family's drafts: write {{domain}} in the repository's name, or say "
                "--layout"
            )
    with _in_options():
        published = publish_draft(
            draft,
            repo_id,
            search=None if search is None else SearchResult.load(search),
            counts=None if counts is None else TokenCounts.load(counts),
            report=None if report is None else DecodeReport.load(report),
            target_id=_hub_id(target),
            draft_id=_hub_id(source),
            datasets=dataset or (),
            license=said or None,
            language=language or None,
            private=private,
            exist_ok=exist_ok,
            revision=revision,
            create_pr=create_pr,
            tag=tag,
            max_shard_size=max_shard_size,
            commit_message=message,
            endpoint=endpoint,
            dry_run=dry_run,
            progress=not quiet,
        )
    facts: dict[str, Any] = {
        "output": published.url,
        "repo_id": published.repo_id,
        "revision": published.revision,
        "commit": published.commit,
        "tag": published.tag,
        "dry_run": published.dry_run,
        "changed": published.changed,
        "files": list(published.files),
        "removed": list(published.removed),
        "steps": list(published.steps),
    }
    if dry_run and not json_:
        out.print("nothing was changed; without --dry-run this would be done:")
        for step in published.steps:
            out.print(f"- {step}", markup=False, soft_wrap=True)
        return
    if not published.changed and not json_:
        for step in published.steps:
            out.print(step, markup=False, soft_wrap=True)
        out.print(f"see {published.url}", markup=False, soft_wrap=True)
        return
    show(facts, [{"step": step} for step in published.steps], json_)


def _hub_id(name: str | None) -> str | None:
    """Return the Hub id of a model; one by the short name of an embedded model has it, too."""
    return None if name is None else NamedModel(name, is_folder=False).hub_id


def _publish_family(folder: Path, repo_id: str, as_json: bool, **options: Any) -> None:
    from .hub_family import publish_family

    family = publish_family(
        folder,
        repo_id,
        on_published=lambda name, one: remarks.print(
            f"{name}: {one.url}", markup=False, soft_wrap=True
        ),
        **options,
    )
    if family.dry_run and not as_json:
        out.print("nothing was changed; without --dry-run this would be done:")
        for step in family.steps:
            out.print(f"- {step}", markup=False, soft_wrap=True)
        return
    drafts = [
        {
            "domain": name,
            "repo_id": one.repo_id,
            "revision": one.revision,
            "commit": one.commit,
            "changed": one.changed,
        }
        for name, one in family.drafts.items()
    ]
    facts: dict[str, Any] = {
        "output": family.url,
        "layout": family.layout,
        "index": family.index,
        "index_commit": family.index_commit,
        "dry_run": family.dry_run,
        "drafts": drafts,
        "steps": list(family.steps),
    }
    show(facts, drafts, as_json)


@contextmanager
def _in_options() -> Iterator[None]:
    """Say of a mistake what to do in this command's words, not in those of the function."""
    from .hub_errors import PublishError

    try:
        yield
    except PublishError as error:
        happened, remedy = as_options(error.happened), as_options(error.remedy)
        raise PublishError(happened, remedy, error.done) from error
    except ValueError as error:
        raise ValueError(as_options(str(error))) from error


def as_options(text: str) -> str:
    """Return a text that names the options where it named arguments."""
    for argument, option in OPTIONS.items():
        text = text.replace(argument, option)
    return text
