"""`publish_family`: one draft a domain, of one target, and an index that lists them.

Every draft is made ready and tried as `publish` does it before anything is created. Then one
after the other is published, and the index comes last. Whenever it is interrupted, the next call
goes on: what is there already stays, without a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .decode_report import DecodeReport
from .family_folder import FamilyDraft, drafts_in
from .family_names import PLACE, REVISIONS, check_apart, index_name, layout_of, place_of
from .family_record import RECORD, FamilyRecord
from .family_upload import IndexUpload
from .hub import Published, publish
from .hub_account import NOT_LISTED, check_login, look_at
from .hub_arguments import (
    check_access,
    check_flag,
    check_hub_id,
    check_place,
    check_shard_size,
    texts,
)
from .hub_errors import PublishError, explained
from .hub_license import check_license
from .plain_facts import DEFAULT_DOMAIN, domain_tag


@dataclass(frozen=True)
class PublishedFamily:
    """What was published of a family; of a dry run, what would be.

    Attributes:
        drafts: by domain.
        index: the repository that lists them; None without one.
        index_commit: its commit; None for a dry run.
        url: of the index, or without one of the first draft.
        layout: `"repositories"` or `"revisions"`.
        dry_run: whether nothing was changed.
        steps: what was done, or would be, in order.
    """

    drafts: Mapping[str, Published]
    index: str | None
    index_commit: str | None
    url: str
    layout: str
    dry_run: bool = False
    steps: tuple[str, ...] = ()


def publish_family(
    drafts: str | Path | Mapping[str, str | Path],
    repo_id: str,
    *,
    layout: str | None = None,
    index: str | bool | None = None,
    license: str | Mapping[str, str] | None = None,
    target_id: str | None = None,
    language: str | Iterable[str] | None = None,
    private: bool | None = None,
    exist_ok: bool = False,
    record: str | Path | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    max_shard_size: int | str | None = None,
    dry_run: bool = False,
    progress: bool = True,
    on_published: Callable[[str, Published], None] | None = None,
) -> PublishedFamily:
    """Publish the drafts of one target, one a domain.

    Args:
        drafts: a folder with one draft folder a domain, the folder of a run with
            `drafts: per_domain`, or the drafts' folders by domain.
        repo_id: `NAMESPACE/NAME`, with `{domain}` in the name for a repository a domain.
        layout: `"repositories"`, one a domain; or `"revisions"`, one repository with a branch a
            domain, whose main holds the index. By default what `repo_id` says. Subfolders are not
            offered: Transformers does not find a draft's code in one, a repository has one card
            and one licence, and one commit could not replace a single draft whole.
        index: name of the repository that lists the drafts; False for none. By default `repo_id`
            with `family` for `{domain}`.
        license: see `publish`, as for what follows.
        target_id: the target's Hub id.
        language: codes of languages, for the cards.
        private: whether new repositories are private. By default an index of drafts that are
            private is private, too.
        exist_ok: whether repositories may exist. Those that `record` names may.
        record: file that notes what was published from here, so that the same call goes on after
            it was cut. By default `.vtrim-family.json` in the folder; drafts given by domain have
            no common folder, so without this they keep no record.
        token: of the Hub.
        endpoint: of the Hub, if it is another.
        max_shard_size: see `save_pretrained`.
        dry_run: check everything and say what would be done.
        progress: show bars on a terminal.
        on_published: called with each domain and what was published.

    Returns:
        What was published.

    Raises:
        TypeError: or ValueError, if an argument is wrong, before anything else is done.
        PublishError: if something does not work; it says what was already done. Called again with
            the same record, it goes on.

    Example:
        ```python
        publish_family("runs/mine", "me/smollm2-{domain}-draft", license="apache-2.0")
        draft = TrimmedDraftForCausalLM.from_hub_for("me/smollm2", domain="sql")
        ```
    """
    from huggingface_hub import HfApi

    layout = layout_of(layout, repo_id)
    _check_arguments(
        token=token,
        endpoint=endpoint,
        license=license,
        target_id=target_id,
        private=private,
        exist_ok=exist_ok,
        dry_run=dry_run,
        progress=progress,
        on_published=on_published,
        max_shard_size=max_shard_size,
    )
    languages = texts("language", language) or None
    noted = _record_place(record, drafts)
    found = drafts_in(drafts)
    places = {name: place_of(layout, repo_id, name) for name in found}
    check_apart(places)
    index_id = index_name(layout, repo_id, index, [name for name, _ in places.values()])
    api = HfApi(endpoint=endpoint)
    own = FamilyRecord(noted)
    own.check_writable()

    def run(draft: FamilyDraft, *, dry: bool) -> Published:
        name, revision = places[draft.domain]
        made = publish(
            draft.folder,
            name,
            report=None if draft.report is None else DecodeReport.load(draft.report),
            license=license,
            target_id=target_id,
            language=languages,
            tags=[tag for tag in [domain_tag(draft.domain)] if tag != DEFAULT_DOMAIN],
            private=private,
            revision=revision,
            exist_ok=exist_ok
            or own.owns(api.endpoint, name, revision)
            or own.owns(api.endpoint, name, None),  # its main, beside which a branch may come
            token=token,
            endpoint=endpoint,
            max_shard_size=max_shard_size,
            dry_run=dry,
            progress=progress,
        )
        # A branch is found by the index that comes last.
        return replace(made, steps=tuple(step for step in made.steps if step != NOT_LISTED))

    planned = {}
    for name, draft in found.items():
        with _of_domain(name, []):
            planned[name] = run(draft, dry=True)
    found_token = check_login(api, token, repo_id.replace(PLACE, "x"), create_pr=False)
    upload = None
    if index_id is not None:
        check_login(api, token, index_id, create_pr=False)
        upload = IndexUpload(
            api,
            index_id,
            found_token,
            license=license,
            private=private,
            holds_drafts=layout == REVISIONS,
            target=target_id or next((one.target for one in found.values() if one.target), None),
            vocab_size=next(iter(found.values())).vocab_size,
        )
        ours = exist_ok or own.owns(api.endpoint, index_id, None)
        ours = ours or (layout == REVISIONS and _has_only_ours(api, index_id, own, found_token))
        upload.check([_entry(name, *places[name], None) for name in found], exist_ok=ours)
    if dry_run:
        told = _plan(planned)
        if upload is not None:
            told += [f"list them in {index_id}", *_gone(upload)]
        return _result(planned, index_id, None, api, layout, told, dry_run=True)
    done: list[str] = []
    published: dict[str, Published] = {}
    for name, draft in found.items():
        with _of_domain(name, done), own.publishing(api.endpoint, *places[name]):
            published[name] = run(draft, dry=False)
        done += [f"{name}: {step}" for step in published[name].steps]
        if on_published is not None:
            on_published(name, published[name])
    commit = None
    if upload is not None and index_id is not None:
        entries = [_entry(name, *places[name], published[name].commit) for name in found]
        with _of_domain("the index", done), own.publishing(api.endpoint, index_id, None):
            commit = upload.write(entries, progress=progress)
        done += [f"{index_id} lists them", *_gone(upload)]
    return _result(published, index_id, commit, api, layout, done)


def _check_arguments(**given: Any) -> None:
    check_access(given["token"], given["endpoint"])
    check_license(given["license"])
    check_hub_id("target_id", given["target_id"], "target")
    check_shard_size(given["max_shard_size"])
    for name in ("exist_ok", "dry_run", "progress"):
        check_flag(name, given[name])
    check_flag("private", given["private"], or_none=True)
    if given["on_published"] is not None and not callable(given["on_published"]):
        raise TypeError(
            f"on_published must be a function, got {given['on_published']!r:.80}: leave it out "
            "for none"
        )


def _record_place(record: Any, drafts: Any) -> Path | None:
    """Return where is noted what was published."""
    if record is not None:
        check_place("record", record, "leave it out for a file in the folder of the drafts")
        return Path(record)
    return Path(drafts) / RECORD if isinstance(drafts, str | Path) else None


def _has_only_ours(api: Any, repo_id: str, record: FamilyRecord, token: str) -> bool:
    """Whether some branch of the repository is this folder's, so that its main is, too."""
    place = look_at(api, repo_id, None, token)
    if not place.exists:
        return True
    with explained(f"looking at {repo_id}", api.endpoint):
        branches = [ref.name for ref in api.list_repo_refs(repo_id, token=token).branches]
    return any(record.owns(api.endpoint, repo_id, name) for name in branches)


def _plan(planned: Mapping[str, Published]) -> list[str]:
    """Return what would be done, in order; a repository of several branches is made once."""
    steps: list[str] = []
    made: set[str] = set()
    for name, plan in planned.items():
        steps += [f"{name}: {step}" for step in plan.steps if step not in made]
        made.update(step for step in plan.steps if step.startswith("create "))
    return steps


def _gone(upload: IndexUpload) -> list[str]:
    names = ", ".join(upload.left_out)
    return [f"leave out of it what is gone: {names}"] if names else []


def _entry(domain: str, repo_id: str, revision: str | None, commit: str | None) -> dict[str, Any]:
    entry = {"domain": domain, "repo_id": repo_id, "revision": revision, "commit": commit}
    return {name: value for name, value in entry.items() if value is not None}


@contextmanager
def _of_domain(domain: str, done: Sequence[str]) -> Iterator[None]:
    """Say of an error which draft it is about, and what was done before."""
    try:
        yield
    except PublishError as error:
        own = [f"{domain}: {step}" for step in error.done]
        raise PublishError(f"{domain}: {error.happened}", error.remedy, [*done, *own]) from error
    except ValueError as error:
        raise ValueError(f"{domain}: {error}") from error


def _result(
    published: Mapping[str, Published],
    index: str | None,
    commit: str | None,
    api: Any,
    layout: str,
    steps: list[str],
    *,
    dry_run: bool = False,
) -> PublishedFamily:
    first = next(iter(published.values())).url
    url = first if index is None else f"{api.endpoint}/{index}"
    return PublishedFamily(dict(published), index, commit, url, layout, dry_run, tuple(steps))
