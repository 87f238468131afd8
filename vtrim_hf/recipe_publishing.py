"""The `publish` step of a recipe: whether drafts could go to the Hub, and how each goes there.

Drafts of several domains are a family: each, once it is published, gets its line in the index that
`find_drafts` and people find it by. So the index always lists what is there, wherever a run ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .decode_report import DecodeReport
from .family_index import check_holds_no_index
from .hub_account import MAIN, NOT_LISTED, check_free, check_login, look_at
from .named_models import NamedModel
from .recipe import PublishChoice, Recipe, is_place
from .recipe_plan import Piece, endpoint_of, repo_id
from .recipe_yaml import Mistake, RecipeError
from .run_folder import files_in, replaced_folder
from .search_result import SEARCH_JSON, SearchResult
from .steps import REPORT_JSON

if TYPE_CHECKING:
    from .family_upload import IndexUpload
    from .recipe_work import Workshop

PUBLISHED_JSON = "published.json"


def check_publishing(
    recipe: Recipe, scopes: Iterable[str | None], owns: Callable[[str, str], bool]
) -> None:
    """Make sure that drafts could be published now, before hours of work.

    Args:
        recipe: the recipe.
        scopes: of the drafts: a domain, or None for that of all domains.
        owns: tells of an endpoint and a repository whether it was this run that filled it.

    Raises:
        RecipeError: if nobody is logged in, or a repository may not be written to.
    """
    from huggingface_hub import HfApi

    wish, mistakes, wanted = recipe.publish, [], list(scopes)
    if wish is None or not wanted:
        return
    endpoint = endpoint_of(recipe)
    api = HfApi(endpoint=endpoint)

    def check(name: str) -> None:
        token = check_login(api, None, name, create_pr=wish.create_pr)
        place = look_at(api, name, wish.revision, token)
        check_holds_no_index(place)
        check_free(
            place,
            api.endpoint,
            exist_ok=wish.exist_ok or owns(endpoint, name),
            create_pr=wish.create_pr,
            private=wish.private,
            tag=None,
        )

    def check_index(name: str) -> None:
        entries = [_entry(scope, repo_id(recipe, scope), wish) for scope in wanted]
        ours = wish.exist_ok or owns(endpoint, name)
        _index(recipe, wish, name, endpoint).check(entries, exist_ok=ours)

    places = [("repo_id", repo_id(recipe, scope), check) for scope in wanted]
    if wish.index is not None:
        places.append(("index", wish.index, check_index))
    for field, name, checked in places:
        try:
            checked(name)
        except (OSError, ValueError) as error:
            mistakes.append(Mistake(recipe.line(f"publish.{field}"), f"publish: {error}"))
    if mistakes:
        raise RecipeError(recipe.path, mistakes)


def publish(shop: Workshop, piece: Piece) -> tuple[list[Path], dict[str, Any]]:
    """Publish a draft, and list it in the index if the recipe has one.

    Returns:
        The file that tells where it is, and facts to record.
    """
    from .hub import publish as publish_draft

    recipe, run = shop.recipe, shop.folder
    wish = recipe.publish
    if wish is None:
        raise ValueError("this recipe publishes nothing")
    name = repo_id(recipe, piece.scope)
    search = run.folder_of("search", piece.scope) / SEARCH_JSON
    report = run.folder_of("measure", piece.scope) / REPORT_JSON
    endpoint = endpoint_of(recipe)
    with run.publishing(endpoint, name, proposed=wish.create_pr) as own:
        published = publish_draft(
            run.folder_of(recipe.making, piece.scope),
            name,
            search=SearchResult.load(search),
            report=DecodeReport.load(report) if recipe.measure is not None else None,
            counts=shop.counts(piece.scope),
            license=wish.license,
            private=wish.private,
            revision=wish.revision,
            create_pr=wish.create_pr,
            exist_ok=wish.exist_ok or own,
            endpoint=endpoint,
            progress=shop.progress,
        )
    if NOT_LISTED in published.steps:
        shop.say(f"{name}: {NOT_LISTED}")
    facts = {
        "endpoint": endpoint,
        "repo_id": name,
        "url": published.url,
        "commit": published.commit,
        "revision": published.revision,
    }
    if wish.index is not None:
        entry = {**_entry(piece.scope, name, wish), "commit": published.commit}
        with run.publishing(endpoint, wish.index, proposed=False):
            _index(recipe, wish, wish.index, endpoint).write([entry], progress=shop.progress)
        facts["index"] = wish.index
    place = run.place(piece)
    with replaced_folder(place) as new:
        text = json.dumps(facts, indent=2) + "\n"
        (new / PUBLISHED_JSON).write_text(text, encoding="utf-8")
    return files_in(place), facts


def _index(recipe: Recipe, wish: PublishChoice, name: str, endpoint: str) -> IndexUpload:
    """Return the index, for whoever is logged in and may write there."""
    from huggingface_hub import HfApi

    from .family_upload import IndexUpload

    api = HfApi(endpoint=endpoint)
    token = check_login(api, None, name, create_pr=False)
    target = recipe.target.name
    return IndexUpload(
        api,
        name,
        token,
        license=wish.license,
        private=wish.private,
        holds_drafts=False,
        target=NamedModel(target, is_folder=is_place(target)).hub_id,
    )


def _entry(scope: str | None, name: str, wish: PublishChoice) -> Mapping[str, Any]:
    branch = {} if wish.revision in (None, MAIN) else {"revision": wish.revision}
    return {"domain": scope, "repo_id": name, **branch}
