"""What changes the Hub: create the repository, one commit, a tag; and what that will be."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .hub_account import MAIN, Destination
from .hub_errors import explained, is_passing

WEIGHTS = ("model*.safetensors", "model*.safetensors.index*.json", "pytorch_model*.bin*")
"""Files that a loader may take for weights, in a repository and in a folder."""

_PAUSE = 2.0  # seconds before the one second try


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
            "" if self.place.revision == MAIN else f"/tree/{self.place.revision}"
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
        api, place, token = self.api, self.place, self.token
        repo_id, branch, head = place.repo_id, place.revision, place.head
        if not place.exists:
            with self._doing(f"creating {repo_id}", f"{repo_id} was created"):
                api.create_repo(repo_id, private=self.private, token=token)
        if not place.exists or not place.branch_exists:
            if branch != MAIN:
                with self._doing(f"creating {branch}", f"the branch {branch} was created"):
                    api.create_branch(repo_id, branch=branch, exist_ok=True, token=token)
            with self._doing(f"looking at {repo_id}"):
                head = api.model_info(repo_id, revision=branch, token=token).sha
        with self._doing("uploading", "all files were committed"):
            info = self._commit(folder, files, stale, head)
        request = getattr(info, "pr_url", None)
        # Where nothing changes the client makes no commit, and names the one that is there.
        self.changed = bool(request) or info.oid != head
        self.done[-1] = f"all files were committed as {info.oid[:12]}"
        if not self.changed:
            no_request = ", so no pull request was opened" if self.create_pr else ""
            self.done[-1] = f"nothing changed: {info.oid[:12]} has all files already{no_request}"
        if self.tag is not None:
            with self._doing(
                f"tagging {info.oid[:12]}",
                f"the commit was tagged {self.tag}",
                "the draft is there and only the tag is missing: run it again with exist_ok=True",
            ):
                api.create_tag(repo_id, tag=self.tag, revision=info.oid, token=token)
        if request:
            return info.oid, str(request), str(info.pr_revision)
        return info.oid, self.url, branch

    def _commit(
        self, folder: Path, files: tuple[str, ...], stale: tuple[str, ...], head: str | None
    ) -> Any:
        """Make the one commit. `upload_folder` may split what takes long, and never does here."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        def attempt() -> Any:
            return self.api.create_commit(
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

        try:
            return attempt()
        except Exception as first:
            if not is_passing(first):
                raise
            time.sleep(_PAUSE)
            try:
                return attempt()
            except Exception:
                raise first from None  # what went wrong at first is what matters

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
