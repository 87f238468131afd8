"""A file of answers that survives being killed: JSON lines that are only ever appended to.

The first line says what gave the answers; a later run that would give others refuses to add to
them. A last line that a kill tore apart is cut off. The line that says "finished" is for people
and scripts: every run looks at each prompt's hash all the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from .chat_rows import RECORD_COLUMN

FORMAT = 1


class AnswersFile:
    """Opens a file of answers for appending, after reading what it holds.

    Args:
        path: the file; made if it does not exist.
        facts: JSON-able; what gives the answers, with a "fingerprint" over all that changes them.

    Attributes:
        answered: hashes of the prompts that are answered.
        tokens: ids in all answers.

    Raises:
        ValueError: if the file is something else, was made with other facts, or is damaged
            anywhere but at its end.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self._path = path
        self.answered: set[str] = set()
        self.tokens = 0
        header = {RECORD_COLUMN: "answers", "format": FORMAT, **facts}
        self._header = _line(header)
        self._facts = facts
        self._finished = False
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = self._read() if path.is_file() else 0
        self._file: BinaryIO = path.open("r+b" if path.is_file() else "wb")
        self._file.truncate(whole)
        self._file.seek(whole)
        if whole == 0:
            self._write(self._header)

    def __enter__(self) -> AnswersFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Append answers and wait until they are on the disk."""
        lines = [_line(row) for row in rows]
        self._write(b"".join(lines))
        self._finished = False
        for row in rows:
            self._note(row)

    def finish(self) -> None:
        """Note that all prompts of the data are answered, if it is not noted yet."""
        if not self._finished:
            self._write(_line({RECORD_COLUMN: "finished", "answered": len(self.answered)}))
            self._finished = True

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _note(self, row: Mapping[str, Any]) -> None:
        self.answered.add(row["prompt_hash"])
        self.tokens += len(row["assistant_token_ids"])

    def _read(self) -> int:
        """Take in what is there; returns how many bytes of it are whole lines."""
        whole = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):  # only the last line can lack its end
                    if number == 1 and not self._header.startswith(line):
                        raise ValueError(self._foreign("its first line is no header of answers"))
                    return whole
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if number == 1:
                    self._check_header(row)
                elif not isinstance(row, dict):
                    raise ValueError(
                        f"{self._path}:{number} is damaged in the middle of the file: take "
                        "the line out, and its prompt is answered again"
                    )
                elif row.get(RECORD_COLUMN) == "finished":
                    self._finished = True
                else:
                    self._finished = False
                    self._check_answer(row, number)
                    self._note(row)
                whole += len(line)
        return whole

    def _check_header(self, row: Any) -> None:
        if not isinstance(row, dict) or row.get(RECORD_COLUMN) != "answers":
            raise ValueError(self._foreign("its first line is no header of answers"))
        if row.get("format") != FORMAT:
            raise ValueError(self._foreign(f"its format is {row.get('format')!r}, not {FORMAT}"))
        if row.get("fingerprint") != self._facts["fingerprint"]:
            theirs, ours = row.get("settings"), self._facts.get("settings")
            changed = [
                f"{key}: {theirs.get(key)!r} there, {value!r} now"
                for key, value in (ours or {}).items()
                if isinstance(theirs, dict) and theirs.get(key) != value
            ]
            raise ValueError(
                f"{self._path} holds answers of another target or other settings "
                f"({'; '.join(changed) or 'other weights or another config'}): answers are "
                "never mixed; use another output file"
            )

    def _check_answer(self, row: Mapping[str, Any], number: int) -> None:
        ids = row.get("assistant_token_ids")
        if not isinstance(row.get("prompt_hash"), str) or not isinstance(ids, list):
            raise ValueError(
                f"{self._path}:{number} is no answer: it lacks prompt_hash or assistant_token_ids"
            )

    def _foreign(self, why: str) -> str:
        return f"{self._path} exists and is no file of answers ({why}): use another output file"


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8")
