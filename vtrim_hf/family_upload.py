"""The index of a family on the Hub: checked before the drafts are published, written after."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .coverage_metadata import COVERAGE_JSON
from .family_index import FAMILY_JSON, FAMILY_TAG, family_card, family_text, merged, parse_family
from .hub_account import Destination, check_free, look_at
from .hub_card import check_card, existing_card
from .hub_errors import PublishError, explained, our_part
from .hub_scratch import scratch_folder
from .hub_upload import Upload, client_bars
from .model_card import TAGS, license_of
from .published_draft import PublishedDraft, draft_from_facts
from .published_files import read_facts, small_file

logger = logging.getLogger(__name__)

_LARGEST = 1 << 20  # bytes of an index or a card that are read


class IndexUpload:
    """The repository that lists the drafts of a family: a table for people, JSON for programs.

    Args:
        api: a `huggingface_hub.HfApi`.
        repo_id: of the index.
        token: of the Hub.
        license: of the drafts, if it was given.
        private: whether a new repository is private.
        holds_drafts: whether the drafts are branches of this same repository, so that
            `find_drafts` must look here.
        target: Hub id of the drafts' target, if it is known.
        vocab_size: its padded width, if it is known.

    Attributes:
        left_out: drafts that were listed, and are left out because they are gone.
    """

    def __init__(
        self,
        api: Any,
        repo_id: str,
        token: str,
        *,
        license: str | Mapping[str, str] | None,
        private: bool | None,
        holds_drafts: bool,
        target: str | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.left_out: tuple[str, ...] = ()
        self._target, self._vocab_size = target, vocab_size
        self._api, self._repo_id, self._token = api, repo_id, token
        self._license, self._private = license, private
        # Without our own tag an index of repositories is not taken for one more draft.
        self._tags = (*(TAGS if holds_drafts else TAGS[1:]), FAMILY_TAG)

    def check(self, entries: Sequence[Mapping[str, Any]], *, exist_ok: bool) -> None:
        """Raise unless the index can be written; nothing is changed.

        Raises:
            PublishError: saying why not; also if the index is another target's.
        """
        place = self._look()
        check_free(
            place,
            self._api.endpoint,
            exist_ok=exist_ok,
            create_pr=False,
            private=self._private,
            tag=None,
        )
        with scratch_folder() as made, client_bars(shown=False):
            listed = self._with_old(place, entries)
            self._text(listed)
            self._card(place, listed, {}, made)

    def write(self, entries: Sequence[Mapping[str, Any]], *, progress: bool) -> str:
        """Write the index, old entries of other domains kept; return its commit.

        Raises:
            PublishError: saying what was done.
        """
        place = self._look()
        with scratch_folder() as made:
            with client_bars(shown=False):
                listed = self._with_old(place, entries)
                known = self._known(listed)
                self._check_targets(known.values())
                text = self._card(place, listed, known, made)
            folder = Path(made) / "index"
            (folder / FAMILY_JSON).parent.mkdir(parents=True)
            (folder / FAMILY_JSON).write_text(self._text(listed), encoding="utf-8")
            (folder / "README.md").write_text(text, encoding="utf-8")
            if self._private is None and not place.exists and self._any_private(listed):
                self._private = True  # it tells of them
            upload = Upload(
                self._api,
                place,
                self._token,
                private=self._private,
                create_pr=False,
                message=f"List {len(listed)} drafts",
                description=None,
                tag=None,
            )
            with client_bars(progress):
                return upload.run(folder, ("README.md", FAMILY_JSON), ())[0]

    def _look(self) -> Destination:
        place = look_at(self._api, self._repo_id, None, self._token)
        if COVERAGE_JSON in place.files:
            raise PublishError(
                f"the main of {self._repo_id} holds a draft, an index must have it for itself",
                "take another name for it",
            )
        return place

    def _with_old(
        self, place: Destination, entries: Sequence[Mapping[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the entries with those of an earlier index whose drafts are still there."""
        if FAMILY_JSON not in place.files:
            return merged([], entries)
        with explained(f"reading the index {self._repo_id}", self._api.endpoint):
            text = self._read(self._repo_id, str(place.head), FAMILY_JSON)
        try:
            old = parse_family(text)["drafts"]
        except ValueError as error:
            raise ValueError(f"the index {self._repo_id} cannot be renewed: {error}") from error
        ours = [_place(entry) for entry in entries]
        others = [entry for entry in old if _place(entry) not in ours]
        there = [entry for entry in others if self._is_there(entry)]
        self.left_out = tuple("@".join(_place(entry)) for entry in others if entry not in there)
        for name in self.left_out:
            logger.warning("%s lists %s, which is gone: it is left out", self._repo_id, name)
        self._check_targets(self._known(there).values())
        return merged(there, entries)

    def _any_private(self, entries: Iterable[Mapping[str, Any]]) -> bool:
        names = {entry["repo_id"] for entry in entries} - {self._repo_id}
        with explained("looking at the drafts", self._api.endpoint):
            return any(self._api.model_info(n, token=self._token).private for n in sorted(names))

    def _is_there(self, entry: Mapping[str, Any]) -> bool:
        """Ask the Hub whether a draft is there; the cache would tell what was."""
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        repo_id, revision = entry["repo_id"], entry.get("revision")
        with explained(f"looking at {repo_id}", self._api.endpoint):
            try:
                self._api.model_info(repo_id, revision=revision, token=self._token)
            except (RepositoryNotFoundError, RevisionNotFoundError):
                return False
        return True

    def _check_targets(self, drafts: Iterable[PublishedDraft]) -> None:
        """Raise if a listed draft is another target's: under one domain there is room for one."""
        for draft in drafts:
            width = draft.vocab_size
            self._vocab_size = self._vocab_size or width
            self._target = self._target or draft.target
            told, ours = draft.target or "", self._target or ""
            if (told and told.casefold() != ours.casefold()) or width != self._vocab_size:
                raise PublishError(
                    f"the index {self._repo_id} lists {draft.name} for {told or 'its target'} "
                    f"({width} tokens), these drafts are for {ours or 'another'} "
                    f"({self._vocab_size} tokens)",
                    "name another repository for the index of this target with index=",
                )

    def _text(self, entries: Sequence[Mapping[str, Any]]) -> str:
        with our_part(f"the drafts cannot be listed in {self._repo_id}"):
            return family_text(entries)

    def _card(
        self,
        place: Destination,
        entries: Sequence[Mapping[str, Any]],
        known: Mapping[str, PublishedDraft],
        scratch: Path,
    ) -> str:
        card = existing_card(self._api, place, self._token, None, scratch)
        text = family_card(
            self._repo_id,
            entries,
            known,
            tags=self._tags,
            license=self._one_license(known.values(), card),
            existing=card,
        )
        check_card(self._api, text, self._token)
        return text

    def _known(self, entries: Iterable[Mapping[str, Any]]) -> dict[str, PublishedDraft]:
        """Read what is known of the drafts; one that was taken away meanwhile is only named."""
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        found = {}
        for entry in entries:
            repo_id, commit = entry["repo_id"], entry.get("commit")
            if commit is None:
                continue
            try:
                with explained(f"reading the facts of {repo_id}", self._api.endpoint):
                    facts = read_facts(self._api, repo_id, commit, self._token)
            except (ValueError, FileNotFoundError):
                continue
            except PublishError as error:
                gone = (RepositoryNotFoundError, RevisionNotFoundError)
                if not isinstance(error.__cause__, gone):
                    raise
                continue
            found[entry["domain"]] = draft_from_facts(
                facts,
                repo_id=repo_id,
                commit=commit,
                endpoint=self._api.endpoint,
                revision=entry.get("revision"),
            )
        return found

    def _one_license(self, known: Iterable[PublishedDraft], card: str | None) -> dict[str, str]:
        """Return the licence of all drafts, earlier ones too, if they have the same one."""
        told = [self._license_at(draft) for draft in known]
        if not told:  # before anything is published
            said = self._license or license_of(card)
            return {"license": said} if isinstance(said, str) else dict(said)
        return told[0] if all(one == told[0] for one in told) else {}

    def _license_at(self, draft: PublishedDraft) -> dict[str, str]:
        with explained(f"reading the card of {draft.repo_id}", self._api.endpoint):
            try:
                text = self._read(draft.repo_id, draft.commit, "README.md")
            except (FileNotFoundError, ValueError):  # none, or one that nobody wrote by hand
                return {}
        return license_of(text.decode("utf-8", "replace"))

    def _read(self, repo_id: str, commit: str, name: str) -> bytes:
        place = small_file(self._api, repo_id, commit, name, self._token, largest=_LARGEST)
        return place.read_bytes()


def _place(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the repository of an entry, and its branch if that is not main."""
    return (entry["repo_id"], *([entry["revision"]] if "revision" in entry else []))
