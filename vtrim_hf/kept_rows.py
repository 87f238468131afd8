"""Finished rows of long work, kept as JSON lines until the work is done, so that a kill costs one.

The file lies beside the output and carries a hash of everything that gives the rows in its name:
the same call finds it again, any other call does not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NAMED_BY = 12


class KeptRows:
    """Rows that were finished before, and a place for those that come.

    A last line that a kill tore apart is dropped; it is cut off when the next row is added.

    Args:
        path: JSON lines; made with the first row that is added.

    Attributes:
        path: the file.
        rows: the whole rows in it, those that are added included.

    Raises:
        ValueError: if a line in the middle of the file is no JSON object.

    Example:
        ```python
        kept = KeptRows.beside(Path("report.json"), {"model": "me/model", "prompts": 20})
        report = measure_decoding(..., on_row=kept.add, done=kept.rows)
        report.save("report.json")
        kept.remove()
        ```
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self._whole = 0
        if path.is_file():
            self._read()

    @classmethod
    def beside(cls, output: Path, call: Mapping[str, Any]) -> KeptRows:
        """Open the rows of one call.

        Args:
            output: the file that the call will write.
            call: everything that gives the rows: JSON values, or what `str` tells apart.
        """
        text = json.dumps(call, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_NAMED_BY]
        return cls(output.with_name(f"{output.stem}.{digest}.rows.jsonl"))

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row and wait until it is on the disk."""
        line = (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("r+b" if self.path.is_file() else "wb") as file:
            file.truncate(self._whole)
            file.seek(self._whole)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._whole += len(line)
        self.rows.append(dict(row))

    def remove(self) -> None:
        """Delete the file: the work is done."""
        self.path.unlink(missing_ok=True)

    def _read(self) -> None:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):  # only the last line can lack its end
                    return
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if not isinstance(row, dict):
                    raise ValueError(
                        f"{self.path}:{number} is no row: take the line out, or delete the file "
                        "to begin anew"
                    )
                self.rows.append(row)
                self._whole += len(line)
