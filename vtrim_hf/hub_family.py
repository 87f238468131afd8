"""`publish_family`: one draft a domain, of one target, and an index that lists them.

Every draft is made ready and tried as `publish` does it before anything is created. Then one
after the other is published, and the index comes last. Whenever it is interrupted, the next call
goes on: what is there already stays, without a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .decode_report import DecodeReport
from .family_folder import FamilyDraft, FamilyRecord, drafts_in
from .family_upload import IndexUpload, make_branch
from .hub import Published, publish
from .hub_account import MAIN, check_login, check_name, check_reference, look_at
from .hub_errors import PublishError, explained
from .hub_license import check_license
from .plain_facts import DEFAULT_DOMAIN, domain_tag

REPOSITORIES, REVISIONS = "repositories", "revisions"
LAYOUTS = (REPOSITORIES, REVISIONS)

_PLACE = "{domain}"


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
        private: whether new repositories are private.
        exist_ok: whether repositories may exist. Those that this folder was published to may.
        token: of the Hub.
        endpoint: of the Hub, if it is another.
        max_shard_size: see `save_pretrained`.
        dry_run: check everything and say what would be done.
        progress: show bars on a terminal.
        on_published: called with each domain and what was published.

    Returns:
        What was published.

    Raises:
        ValueError: if an argument is wrong, before anything else is done.
        PublishError: if something does not work; it says what was already done. Called again with
            the same folder, it goes on.

    Example:
        ```python
        publish_family("runs/mine", "me/smollm2-{domain}-draft", license="apache-2.0")
        draft = TrimmedDraftForCausalLM.from_hub_for("me/smollm2", domain="sql")
        ```
    """
    from huggingface_hub import HfApi

    layout = _layout(layout, repo_id)
    check_license(license)
    found = drafts_in(drafts)
    places = {name: _place(layout, repo_id, name) for name in found}
    index_id = _index_name(layout, repo_id, index, [name for name, _ in places.values()])
    api = HfApi(endpoint=endpoint)
    record = FamilyRecord(None if isinstance(drafts, Mapping) else Path(drafts))

    def run(draft: FamilyDraft, *, dry: bool) -> Published:
        name, revision = places[draft.domain]
        return publish(
            draft.folder,
            name,
            report=None if draft.report is None else DecodeReport.load(draft.report),
            license=license,
            target_id=target_id,
            language=language,
            tags=[tag for tag in [domain_tag(draft.domain)] if tag != DEFAULT_DOMAIN],
            private=private,
            revision=revision,
            exist_ok=exist_ok
            or record.owns(api.endpoint, name, revision)
            or (revision is not None and record.owns(api.endpoint, name, None)),
            token=token,
            endpoint=endpoint,
            max_shard_size=max_shard_size,
            dry_run=dry,
            progress=progress,
        )

    planned = {}
    for name, draft in found.items():
        with _of_domain(name, []):
            planned[name] = run(draft, dry=True)
    found_token = check_login(api, token, repo_id.replace(_PLACE, "x"), create_pr=False)
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
        )
        own = exist_ok or record.owns(api.endpoint, index_id, None)
        own = own or (layout == REVISIONS and _has_only_ours(api, index_id, record, found_token))
        upload.check([_entry(name, *places[name], None) for name in found], exist_ok=own)
    steps = [f"{name}: {step}" for name, plan in planned.items() for step in plan.steps]
    if dry_run:
        told = [*steps, *([f"list them in {index_id}"] if index_id else [])]
        return _result(planned, index_id, None, api, layout, told, dry_run=True)
    done: list[str] = []
    published: dict[str, Published] = {}
    for name, draft in found.items():
        repo, revision = places[name]
        with _of_domain(name, done), record.publishing(api.endpoint, repo, revision):
            if revision is not None:
                make_branch(api, repo, revision, private, found_token, done)
            published[name] = run(draft, dry=False)
        done += [f"{name}: {step}" for step in published[name].steps]
        if on_published is not None:
            on_published(name, published[name])
    commit = None
    if upload is not None and index_id is not None:
        entries = [_entry(name, *places[name], published[name].commit) for name in found]
        with _of_domain("the index", done), record.publishing(api.endpoint, index_id, None):
            commit = upload.write(entries, progress=progress)
        done.append(f"{index_id} lists them")
    return _result(published, index_id, commit, api, layout, done)


def _layout(layout: str | None, repo_id: Any) -> str:
    if not isinstance(repo_id, str):
        raise ValueError(f"repo_id must be a text, NAMESPACE/NAME, got {repo_id!r:.80}")
    has_place = _PLACE in repo_id
    layout = layout or (REPOSITORIES if has_place else REVISIONS)
    if layout == "subfolders":
        raise ValueError(
            "drafts cannot be published in subfolders of one repository: Transformers does not "
            "find a draft's code there, and a repository has one card and one licence; use "
            "layout='revisions' for one repository with a branch a domain, or "
            "layout='repositories'"
        )
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r:.80}")
    if has_place != (layout == REPOSITORIES):
        rule = "needs {domain} in" if layout == REPOSITORIES else "takes no {domain} in"
        example = "me/smollm2-{domain}-draft" if layout == REPOSITORIES else "me/smollm2-drafts"
        raise ValueError(
            f"layout={layout!r} {rule} the repository's name, got {repo_id!r:.120}: write e.g. "
            f"{example!r}"
        )
    return layout


def _place(layout: str, repo_id: str, domain: str) -> tuple[str, str | None]:
    """Return repository and branch of a domain's draft."""
    if layout == REPOSITORIES:
        name = repo_id.replace(_PLACE, domain)
        check_name(name)
        return name, None
    check_name(repo_id)
    check_reference(domain, "revision")
    if domain == MAIN:
        raise ValueError(
            "a domain called 'main' can have no branch, the index lies there: rename its folder, "
            "or use layout='repositories'"
        )
    return repo_id, domain


def _index_name(
    layout: str, repo_id: str, index: str | bool | None, taken: list[str]
) -> str | None:
    if layout == REVISIONS:
        if index not in (None, True, repo_id):
            raise ValueError(
                "with layout='revisions' the index lies on the repository's main, which is how "
                f"the branches are found: leave index out, got {index!r:.80}"
            )
        return repo_id
    if index is False:
        return None
    name = index if isinstance(index, str) else repo_id.replace(_PLACE, "family")
    check_name(name)
    if name in taken:
        raise ValueError(f"the index needs a name of its own, {name} is a draft's: pass index=")
    return name


def _has_only_ours(api: Any, repo_id: str, record: FamilyRecord, token: str) -> bool:
    """Whether some branch of the repository is this folder's, so that its main is, too."""
    place = look_at(api, repo_id, None, token)
    if not place.exists:
        return True
    with explained(f"looking at {repo_id}", api.endpoint):
        branches = [ref.name for ref in api.list_repo_refs(repo_id, token=token).branches]
    return any(record.owns(api.endpoint, repo_id, name) for name in branches)


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
