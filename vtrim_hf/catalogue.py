"""`find_drafts`: which drafts are published, for which target and domain, and how good they are.

The Hub is asked for repositories with the tag that `publish` gives them, and with that of the
domain; and for all that hold a draft a branch, whose tags need not tell what each branch counted.
Of each draft its facts are read, at the commit that the Hub named, and of one on a branch its card
and its family's index; small files all, and kept in the cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from .card_words import harmless
from .coverage_metadata import COVERAGE_JSON
from .family_index import FAMILY_JSON, FAMILY_TAG, parse_family
from .hub_arguments import check_access, check_number, check_text
from .hub_errors import is_passing, status_of
from .hub_upload import client_bars
from .model_card import TAGS, license_of
from .plain_facts import DEFAULT_DOMAIN, domain_tag
from .published_draft import Covered, PublishedDraft, draft_from_facts, order_of_merit
from .published_files import answered, drafts_in_cache, loading, read_facts, small_file

__all__ = ["Covered", "PublishedDraft", "best_draft", "find_drafts", "loading"]

logger = logging.getLogger(__name__)

MOST_REPOSITORIES = 1000
"""How many repositories are looked at; of more, those that were changed last."""

_AT_ONCE = 8
_FAMILY_LIMIT = _LARGEST_CARD = 1 << 20


def find_drafts(
    target: str | None = None,
    domain: str | None = None,
    *,
    author: str | None = None,
    k_max: int | None = None,
    license: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    limit: int | None = 100,
) -> list[PublishedDraft]:
    """Find published drafts, the best first.

    The weights of none are downloaded. A repository whose facts are missing, damaged or closed to
    this token is left out, with a warning that names it.

    Args:
        target: Hub id of the model to draft for; None for drafts of any.
        domain: what it shall be good at, by the name of data that it counted, or by a tag.
        author: user or organization that published it. All that a draft is chosen by is what its
            publisher says, so name one that you trust.
        k_max: most kept ids.
        license: identifier of the licence, as the Hub has it.
        token: of the Hub; by default the one that is logged in, False for none.
        endpoint: of the Hub, if it is another.
        limit: how many to return at most; None for all.

    Returns:
        Drafts; those that counted the domain before those that are only tagged with it, then by
        coverage of the domain (without one, of all data) in whole per cents, then by measured
        speed-up, then the smaller vocabulary.

    Raises:
        ValueError: for an argument that means nothing.
        OSError: if the Hub does not answer.

    Example:
        ```python
        for draft in find_drafts("HuggingFaceTB/SmolLM2-1.7B-Instruct", domain="sql"):
            print(draft.repo_id, draft.k, draft.covered("sql"), draft.speedup)
        ```
    """
    from huggingface_hub import HfApi

    check_wishes(target, domain, author=author, license=license, k_max=k_max, limit=limit)
    check_access(token, endpoint)
    api = HfApi(endpoint=endpoint)

    def fits(draft: PublishedDraft) -> bool:
        return (
            (target is None or (draft.target or "").casefold() == target.casefold())
            and (domain is None or draft.serves(domain) > 0)
            and (k_max is None or draft.k <= k_max)
            and (license is None or (draft.license or "").casefold() == license.casefold())
        )

    found = [draft for draft in _all_drafts(api, domain, author, token) if fits(draft)]
    return sorted(found, key=lambda draft: order_of_merit(draft, domain))[:limit]


def best_draft(
    target: str, domain: str | None = None, *, endpoint: str | None = None, **wanted: Any
) -> PublishedDraft:
    """Return the draft that `find_drafts` lists first.

    Args:
        target: see `find_drafts`.
        domain: see `find_drafts`.
        endpoint: see `find_drafts`.
        wanted: see `find_drafts`.

    Raises:
        ValueError: if there is none; the text says what there is instead.
        OSError: if the Hub does not answer.
    """
    from huggingface_hub import HfApi

    if target is None:
        raise ValueError("name the target: a draft drafts for one model, got None")
    try:
        found = find_drafts(target, domain, endpoint=endpoint, **{**wanted, "limit": 1})
    except OSError as error:
        # An earlier answer would be another draft's tomorrow: it is named, and not taken.
        known = _listed(f"{name} at {commit}" for name, commit in drafts_in_cache(target))
        cached = f"; in the cache are {known}" if known else ""
        raise OSError(
            f"{error}; which draft fits best only the Hub can tell, one that you name is loaded "
            "without it if it is in the cache: "
            f"TrimmedDraftForCausalLM.from_pretrained(repo_id, revision=commit){cached}"
        ) from error
    if found:
        return found[0]
    told = {"author": "of", "license": "under the licence", "k_max": "with k up to"}
    narrowed = [f" {text} {wanted[n]}" for n, text in told.items() if wanted.get(n) is not None]
    what = f"no draft for {target}" + (f" and the domain {domain!r}" if domain else "")
    where = f"{what}{''.join(narrowed)} is published on {HfApi(endpoint=endpoint).endpoint}"
    token = wanted.get("token")
    others = find_drafts(target, endpoint=endpoint, token=token, limit=None)
    if others:
        listed = _listed(
            f"{draft.name} ({', '.join(draft.domains) or 'no domain'}, k={draft.k}, "
            f"{draft.license})"
            for draft in others
        )
        raise ValueError(f"{where}; for this target there are: {listed}")
    targets = {
        draft.target for draft in find_drafts(endpoint=endpoint, token=token, limit=None)
    } - {None}
    raise ValueError(
        f"{where}; "
        + (f"there are drafts for: {_listed(sorted(map(str, targets)))}; " if targets else "")
        + "make one with `vtrim count`, `vtrim search` and `vtrim trim`"
    )


def _listed(names: Iterable[str], most: int = 10) -> str:
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(map(harmless, every[:most])) + more


def check_wishes(
    target: Any, domain: Any, *, author: Any, license: Any, k_max: Any, limit: Any
) -> None:
    """Raise for an argument of `find_drafts` that means nothing.

    Raises:
        ValueError: naming the argument and the rule.
    """
    check_text("target", target, "pass the target's Hub id")
    check_text("domain", domain, "pass e.g. 'sql'")
    check_text("author", author, "leave it out for any")
    check_text("license", license, "leave it out for any")
    check_number("k_max", k_max)
    check_number("limit", limit)


def _all_drafts(
    api: Any, domain: str | None, author: str | None, token: str | bool | None
) -> list[PublishedDraft]:
    tag = DEFAULT_DOMAIN if domain is None else domain_tag(domain)
    asked = [[TAGS[0]]] if tag == DEFAULT_DOMAIN else [[TAGS[0], tag], [TAGS[0], FAMILY_TAG]]
    models = {
        model.id: model for tags in asked for model in _tagged_with(tags, api, author, token)
    }
    with client_bars(shown=False), ThreadPoolExecutor(_AT_ONCE) as pool:
        read = pool.map(lambda model: _drafts_of(api, model, token), models.values())
        return [draft for drafts in read for draft in drafts]


def _tagged_with(
    tags: list[str], api: Any, author: str | None, token: str | bool | None
) -> list[Any]:
    """Return what the Hub tells of the repositories that have all tags."""
    with answered("listing published drafts", api.endpoint):
        listed = api.list_models(
            filter=tags,
            author=author,
            sort="last_modified",
            expand=["sha", "tags", "siblings"],
            token=token,
        )
        models = list(islice(listed, MOST_REPOSITORIES + 1))
    if len(models) > MOST_REPOSITORIES:
        logger.warning(
            "%s holds more than %d drafts of this kind; only those that were changed last are "
            "looked at: name an author or a domain",
            api.endpoint,
            MOST_REPOSITORIES,
        )
    return models[:MOST_REPOSITORIES]


def _drafts_of(api: Any, model: Any, token: str | bool | None) -> list[PublishedDraft]:
    """Return the drafts of a repository: one, or one a branch where an index lists them."""
    repo_id, tags = model.id, tuple(map(str, model.tags or ()))
    files = {file.rfilename for file in model.siblings or ()}
    places: list[tuple[str | None, str, tuple[str, ...]]] = []
    if COVERAGE_JSON in files:
        places.append((None, model.sha, tags))
    if FAMILY_JSON in files:
        # The repository's tags are of all its drafts, a branch's card of its own.
        found = _or_warn(repo_id, api, lambda: _branches(api, repo_id, model.sha, token)) or []
        places += [(name, commit, (domain_tag(of),)) for name, commit, of in found]
    if not files & {COVERAGE_JSON, FAMILY_JSON}:
        logger.warning("%s is not listed: it has no %s", repo_id, COVERAGE_JSON)
    drafts = []
    for revision, commit, own_tags in places:
        read = partial(_draft_at, api, repo_id, commit, revision, own_tags, token)
        draft = _or_warn(repo_id if revision is None else f"{repo_id}@{revision}", api, read)
        if draft is not None:
            drafts.append(draft)
    return drafts


def _draft_at(
    api: Any,
    repo_id: str,
    commit: str,
    revision: str | None,
    tags: tuple[str, ...],
    token: str | bool | None,
) -> PublishedDraft:
    if revision is not None:
        with suppress(FileNotFoundError):
            card = small_file(api, repo_id, commit, "README.md", token, largest=_LARGEST_CARD)
            said = license_of(card.read_text(encoding="utf-8", errors="replace"))
            tags += tuple(f"license:{said[name]}" for name in said if name == "license")
    return draft_from_facts(
        read_facts(api, repo_id, commit, token),
        repo_id=repo_id,
        commit=commit,
        endpoint=api.endpoint,
        revision=revision,
        tags=tags,
    )


def _branches(
    api: Any, repo_id: str, commit: str, token: str | bool | None
) -> list[tuple[str, str, str]]:
    """Return branch, commit and domain of each draft that an index says lies beside it."""
    place = small_file(api, repo_id, commit, FAMILY_JSON, token, largest=_FAMILY_LIMIT)
    # Whatever repository an entry names, its branch is looked for here: an index that lies beside
    # its drafts is right after the repository was renamed, and can speak for no other one.
    named = {
        entry["revision"]: entry["domain"]
        for entry in parse_family(place.read_bytes())["drafts"]
        if "revision" in entry
    }
    if not named:
        return []
    branches = api.list_repo_refs(repo_id, token=token).branches
    heads = {branch.name: branch.target_commit for branch in branches}
    return [(name, heads[name], domain) for name, domain in named.items() if name in heads]


def _or_warn(name: str, api: Any, read: Callable[[], Any]) -> Any:
    """Return what `read` gives; of one repository's own fault warn, and give None."""
    try:
        return read()
    except (OSError, ValueError, RecursionError) as error:
        # A Hub that fails for one repository serves the others.
        if status_of(error) == 429 or (status_of(error) is None and is_passing(error)):
            with answered(f"reading {name}", api.endpoint):
                raise
        logger.warning("%s is not listed: %s", name, harmless(" ".join(str(error).split())))
        return None
