"""What changes the Hub: create the repository, one commit, a tag; and what that will be.

An answer may be lost although the Hub did what it was asked for. So after a failure that may pass,
the Hub is looked at first: what is there already is not done again, and is told as done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from .hub_account import MAIN, Destination
from .hub_errors import PublishError, explained, is_passing, status_of
from .hub_presence import Made, commit_there, proposal_there

WEIGHTS = ("model*.safetensors", "model*.safetensors.index*.json", "pytorch_model*.bin*")
"""Files that a loader may take for weights, in a repository and in a folder."""

_PAUSE = 2.0  # seconds before the one second try
_T = TypeVar("_T")


class Upload:
    """All that changes the Hub, for one draft.

    Attributes:
        done: what was done, in order; it is there, too, when `run` fails.
        changed: whether `run` made a commit, and not all files were there already.
    """

    def __init__(
        self,
        api: Any,
        place: Destination,
        token: str,
        *,
        private: bool | None,
        create_pr: bool,
        message: str,
        description: str | None,
        tag: str | None,
    ) -> None:
        self.api, self.place, self.token = api, place, token
        self.private, self.create_pr, self.tag = private, create_pr, tag
        self.message, self.description = message, description
        self.done: list[str] = []
        self.changed = False

    @property
    def url(self) -> str:
        """Where the branch can be looked at."""
        return f"{self.api.endpoint}/{self.place.repo_id}" + (
            "" if self.place.revision == MAIN else f"/tree/{quote(self.place.revision, safe='')}"
        )

    def plan(self, files: tuple[str, ...], stale: tuple[str, ...]) -> tuple[str, ...]:
        """Say what `run` will do, in order."""
        place, steps = self.place, []
        if not place.exists:
            kind = {True: "private ", False: "public ", None: ""}[self.private]
            steps.append(f"create the {kind}repository {place.repo_id}")
        if not place.branch_exists and place.revision != MAIN:
            steps.append(f"create the branch {place.revision}")
        what = "propose" if self.create_pr else "commit"
        removing = f", removing {', '.join(stale)}" if stale else ""
        steps.append(f"{what} {len(files)} files to {place.revision}{removing}")
        if self.tag is not None:
            steps.append(f"tag that commit {self.tag}")
        return tuple(steps)

    def run(
        self, folder: Path, files: tuple[str, ...], stale: tuple[str, ...]
    ) -> tuple[str, str, str]:
        """Do it.

        Args:
            folder: what is published.
            files: names of its files.
            stale: names of files that the same commit removes.

        Returns:
            The commit, a URL to look at, and the branch or the pull request's reference.

        Raises:
            PublishError: saying what was already done.
        """
        place, branch, head = self.place, self.place.revision, self.place.head
        if not place.exists:
            self._create()
        if not place.exists or not place.branch_exists:
            if branch != MAIN:
                self._create_branch()
            head = self._look_at_new()
        with self._doing("uploading"):
            made = self._commit(folder, files, stale, head)
        # Where nothing changes the client makes no commit, and names the one that is there.
        self.changed = bool(made.pr_url) or made.oid != head
        said = f"all files were committed as {made.oid[:12]}"
        if not self.changed:
            no_request = ", so no pull request was opened" if self.create_pr else ""
            said = f"nothing changed: {made.oid[:12]} has all files already{no_request}"
        self.done.append(said)
        if self.tag is not None:
            self._make_tag(made.oid, self.tag)
        if made.pr_url:
            return made.oid, made.pr_url, str(made.pr_revision)
        return made.oid, self.url, branch

    def _create(self) -> None:
        api, repo_id, token = self.api, self.place.repo_id, self.token

        def attempt() -> bool:
            api.create_repo(repo_id, private=self.private, token=token)
            return True

        with self._doing(f"creating {repo_id}", f"{repo_id} was created"):
            self._once(
                attempt,
                lambda: api.repo_exists(repo_id, token=token) or None,
                f"{repo_id} was created",
            )

    def _create_branch(self) -> None:
        api, place, token = self.api, self.place, self.token
        branch, said = place.revision, f"the branch {place.revision} was created"

        def attempt() -> bool:
            api.create_branch(
                place.repo_id, branch=branch, revision=place.head, exist_ok=True, token=token
            )
            return True

        def look() -> bool | None:
            refs = api.list_repo_refs(place.repo_id, token=token)
            return branch in {ref.name for ref in refs.branches} or None

        with self._doing(f"creating {branch}", said):
            self._once(attempt, look, said)

    def _look_at_new(self) -> str:
        """Return the commit to start from; refuse a repository or branch that is not ours."""
        place = self.place
        with self._doing(f"looking at {place.repo_id}"):
            info = self.api.model_info(place.repo_id, revision=place.revision, token=self.token)
        names = tuple(file.rfilename for file in info.siblings or ())
        found = Destination(place.repo_id, place.revision, files=names)
        unasked = self.private is not None and self.private != bool(info.private)
        theirs = None
        if not place.exists and (unasked or not found.is_empty):
            theirs = place.repo_id
        elif place.exists and info.sha != place.head:
            theirs = f"the branch {place.revision}"
        if theirs is not None:
            # The answer to our request was lost, and theirs was first.
            raise PublishError(
                f"somebody else created {theirs} meanwhile",
                "look at what they did, then run it again with exist_ok=True",
            )
        return str(info.sha)

    def _commit(
        self, folder: Path, files: tuple[str, ...], stale: tuple[str, ...], head: str | None
    ) -> Made:
        """Make the one commit. `upload_folder` may split what takes long, and never does here."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        def attempt() -> Made:
            info = self.api.create_commit(
                self.place.repo_id,
                [
                    *(CommitOperationAdd(name, folder / name) for name in files),
                    *(CommitOperationDelete(name) for name in stale),
                ],
                commit_message=self.message,
                commit_description=self.description,
                token=self.token,
                revision=self.place.revision,
                create_pr=self.create_pr,
                parent_commit=head,
            )
            url = getattr(info, "pr_url", None)
            return Made(info.oid, str(url), str(info.pr_revision)) if url else Made(info.oid)

        def look() -> Made | None:
            there = proposal_there if self.create_pr else commit_there
            return there(self.api, self.place, self.token, folder, files, stale)

        return self._once(attempt, look, "all files were committed")

    def _make_tag(self, oid: str, tag: str) -> None:
        api, repo_id, token = self.api, self.place.repo_id, self.token

        def attempt() -> bool:
            try:
                api.create_tag(repo_id, tag=tag, revision=oid, token=token)
            except Exception as error:
                if status_of(error) != 409:
                    raise
                raise PublishError(
                    f"{repo_id} got the tag {tag!r} meanwhile",
                    "the draft is there and has no tag: run it again with exist_ok=True and "
                    "another name for the tag",
                    self.done,
                ) from error
            return True

        def look() -> bool | None:
            tags = api.list_repo_refs(repo_id, token=token).tags
            return any(ref.name == tag and ref.target_commit == oid for ref in tags) or None

        said = f"the commit was tagged {tag}"
        missing = "the draft is there and only the tag is missing: run it again with exist_ok=True"
        with self._doing(f"tagging {oid[:12]}", said, missing):
            self._once(attempt, look, said)

    def _once(self, attempt: Callable[[], _T], look: Callable[[], _T | None], what: str) -> _T:
        """Do something at most twice, and not again if only the answer was lost.

        Args:
            attempt: do it.
            look: return what `attempt` does if it is done already, else None.
            what: the same in words, for `done` where it cannot be found out.

        Raises:
            Exception: what `attempt` raised first; what went wrong at first is what matters.
        """
        try:
            return attempt()
        except Exception as first:
            if not is_passing(first):
                raise
            for last in (False, True):
                if not last:
                    time.sleep(_PAUSE)
                try:
                    there = look()
                except Exception:
                    self.done.append(f"it is not known whether {what}")
                    raise first from None
                if there is not None:
                    return there
                if not last:
                    with suppress(Exception):
                        return attempt()
            raise first from None

    @contextmanager
    def _doing(
        self, what: str, then: str | None = None, remedy: str | None = None
    ) -> Iterator[None]:
        with explained(what, self.api.endpoint, self.done, remedy=remedy):
            yield
        if then is not None:
            self.done.append(then)


def is_weights(name: str) -> bool:
    """Whether a file would be taken for weights of the draft, and must not outlive them."""
    return "/" not in name and any(fnmatchcase(name, pattern) for pattern in WEIGHTS)


@contextmanager
def client_bars(shown: bool) -> Iterator[None]:
    """Hide the bars of huggingface_hub while uploading, if none are wanted."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if shown or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
