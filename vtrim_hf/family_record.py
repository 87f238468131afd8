"""Which repositories and branches got their content from here, so that a cut run may go on.

A name that is taken belongs to somebody, perhaps to this same call before it was cut. What it had
noted down before it created anything tells the two apart.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .hub_errors import PublishError
from .vocabulary_files import write_atomically

RECORD = ".vtrim-family.json"
"""What the file is called in a family's folder."""

logger = logging.getLogger(__name__)


class FamilyRecord:
    """The record of one family.

    Args:
        place: its file, made when something is published; None keeps no record.

    Raises:
        ValueError: if there is such a file, and it is no record.
    """

    def __init__(self, place: Path | None) -> None:
        self._place = place
        self._owned: list[list[str]] = []
        if place is None or not place.is_file():
            return
        try:
            self._owned = _read(place.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{place} is no record of what was published, or damaged ({error!r:.200}): remove "
                "it, and pass exist_ok=True to add to repositories that exist; or name another "
                "file with record="
            ) from error

    def check_writable(self) -> None:
        """Raise unless the record can be written, before anything is published.

        Raises:
            PublishError: naming the file.
        """
        if self._place is None:
            return
        try:
            if self._place.is_dir():
                raise IsADirectoryError("it is a folder")
            with tempfile.TemporaryFile(dir=self._place.parent):
                pass
        except OSError as error:
            raise self._unwritable(error) from error

    def owns(self, endpoint: str, repo_id: str, revision: str | None) -> bool:
        """Tell whether a branch got its content from here; None is main."""
        return [endpoint, repo_id, revision or ""] in self._owned

    @contextmanager
    def publishing(self, endpoint: str, repo_id: str, revision: str | None) -> Iterator[None]:
        """Note a branch as ours before it is made, for a kill may follow.

        Raises:
            PublishError: if the record cannot be written; nothing is published then.
        """
        entry = [endpoint, repo_id, revision or ""]
        if entry in self._owned:
            yield
            return
        self._save([*self._owned, entry])
        try:
            yield
        except (OSError, TypeError, ValueError) as error:
            if not (isinstance(error, PublishError) and error.done):
                # Nothing was made, so what is there, if anything, is somebody else's.
                try:
                    self._save([one for one in self._owned if one != entry])
                except PublishError as second:
                    logger.warning("%s; take %s out of it by hand", second.happened, entry)
            raise

    def _save(self, owned: list[list[str]]) -> None:
        if self._place is not None:
            text = json.dumps({"published": owned}, indent=2) + "\n"
            try:
                write_atomically(self._place, text.encode())
            except OSError as error:
                raise self._unwritable(error) from error
        self._owned = owned

    def _unwritable(self, error: OSError) -> PublishError:
        return PublishError(
            f"what is published is noted in {self._place}, which cannot be written "
            f"({error.strerror or error})",
            "name another file with record=",
        )


def _read(text: str) -> list[list[str]]:
    """Return endpoint, repository and branch of each entry of a record's text."""
    owned = json.loads(text)["published"]
    if not isinstance(owned, list):
        raise ValueError(f"published must be a list, got {owned!r:.80}")
    for entry in owned:
        three = isinstance(entry, list) and len(entry) == 3
        if not (three and all(isinstance(part, str) for part in entry)):
            raise ValueError(f"an entry must be three texts, got {entry!r:.80}")
    return owned
