"""A local hub lists repositories as the real client asks for them: filters, pages, fields."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError

from hub_client import point_client_at
from vtrim_hf.local_hub import Account, LocalHub

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

TOKENS = {
    "hf_write": Account("user", organizations=("team",)),
    "hf_bob": Account("bob"),
}
CARD = """---
license: mit
library_name: transformers
pipeline_tag: text-generation
base_model: team/target
tags:
- vtrim
- {tag}
---
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with LocalHub(tmp_path / "hub", tokens=TOKENS, page_size=3, xet=False) as hub:
        point_client_at(monkeypatch, hub, tmp_path / "cache")
        for name, tag in (("user/a-sql", "sql"), ("user/b-chat", "chat"), ("team/c-sql", "sql")):
            add(name, tag)
        yield hub


def add(name: str, tag: str, **options: Any) -> None:
    api = HfApi()
    api.create_repo(name, **options)
    card = CARD.format(tag=tag).encode()
    api.upload_file(repo_id=name, path_in_repo="README.md", path_or_fileobj=card)


def names(**asked: Any) -> list[str]:
    return [model.id for model in HfApi().list_models(**asked)]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"filter": "vtrim"}, ["team/c-sql", "user/a-sql", "user/b-chat"]),
        ({"filter": ["vtrim", "sql"]}, ["team/c-sql", "user/a-sql"]),
        ({"filter": ["sql", "chat"]}, []),
        ({"filter": "base_model:team/target", "author": "user"}, ["user/a-sql", "user/b-chat"]),
        ({"filter": "license:mit", "search": "SQL"}, ["team/c-sql", "user/a-sql"]),
        ({"search": "user sql"}, ["user/a-sql"]),
        ({"pipeline_tag": "text-generation", "limit": 2}, ["team/c-sql", "user/a-sql"]),
        ({"pipeline_tag": "fill-mask"}, []),
        ({"gated": True}, []),
    ],
)
def test_what_is_asked_for(hub: LocalHub, asked: dict[str, Any], found: list[str]) -> None:
    assert names(**asked) == found


def test_pages_follow_each_other_by_links(hub: LocalHub) -> None:
    for number in range(5):
        add(f"user/more-{number}", "more & more")
    hub.clear_log()
    assert len(names(filter=["vtrim", "more & more"])) == 5
    rows = hub.log.matching("GET", "^/api/models$")
    assert len(rows) == 2
    assert "cursor=3" in rows[1].query
    assert len(set(names(filter="vtrim"))) == 8
    hub.clear_log()
    assert len(names(filter="vtrim", limit=2)) == 2
    assert len(hub.log.matching("GET", "^/api/models$")) == 1


def test_private_ones_are_for_those_who_may_see_them(hub: LocalHub) -> None:
    add("user/secret", "sql", private=True)
    assert "user/secret" in names()
    assert "user/secret" not in names(token="hf_bob")
    assert "user/secret" not in names(token=False)
    with pytest.raises(HfHubHTTPError):
        names(token="hf_nobody")


def test_a_row_tells_what_was_asked_for(hub: LocalHub) -> None:
    api = HfApi()
    (row,) = api.list_models(search="a-sql")
    assert (row.sha, row.siblings, row.card_data) == (None, None, None)
    assert "vtrim" in (row.tags or ())
    (row,) = api.list_models(search="a-sql", full=True, cardData=True)
    assert row.sha == api.model_info("user/a-sql").sha
    assert row.siblings is not None
    assert row.card_data is not None
    assert row.card_data.license == "mit"
    (row,) = api.list_models(search="a-sql", expand=["sha", "siblings"])
    assert row.sha is not None
    assert [file.rfilename for file in row.siblings or ()] == [".gitattributes", "README.md"]
    assert (row.tags, row.pipeline_tag, row.private) == (None, None, None)


def test_the_order(hub: LocalHub) -> None:
    assert names(sort="last_modified") == ["team/c-sql", "user/b-chat", "user/a-sql"]
    assert names(sort="created_at") == ["team/c-sql", "user/b-chat", "user/a-sql"]
    with pytest.raises(HfHubHTTPError, match="sort is one of"):
        names(sort="size")
    assert hub.log.matching("GET", "^/api/models$")[-1].status == 400
