"""A run's folder: which pieces are finished, what went into them, and where their products lie.

recipe.yaml  versions.json  run.json  report.json  report.md
count/sql.safetensors ...           one file a domain, and the target's answers
search/ draft/ measure/ publish/    of the one draft; of several, below domains/<domain>/
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .recipe_plan import Piece
from .run_lock import LOCK_FILE
from .vocabulary_files import write_atomically

_FORMAT = 1
_RECORD = "run.json"
_FOLDERS = {"search": "search", "trim": "draft", "measure": "measure", "publish": "publish"}


class RunFolder:
    """The folder of one run; nothing is written before something is finished.

    Args:
        path: the folder.

    Attributes:
        path: the folder.

    Raises:
        ValueError: if it is not empty and was not made by a run, or its record is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pieces: dict[str, dict[str, Any]] = {}
        if path.exists() and not path.is_dir():
            raise ValueError(f"the run folder {path} is a file: name another with --run-folder")
        record = path / _RECORD
        if record.is_file():
            self._pieces = _read(record)
        elif path.is_dir() and any(one.name != LOCK_FILE for one in path.iterdir()):
            raise ValueError(
                f"{path} holds other files and is no run's folder: name an empty one, or one that "
                "does not exist, with --run-folder"
            )

    def place(self, piece: Piece) -> Path:
        """Return where a piece's product lies: a file of counts, or a folder."""
        if piece.step == "count":
            return self.path / "count" / f"{piece.scope}.safetensors"
        return self.folder_of(piece.step, piece.scope)

    def folder_of(self, step: str, scope: str | None) -> Path:
        """Return the folder of a draft's step."""
        base = self.path if scope is None else self.path / "domains" / scope
        return base / _FOLDERS[step]

    def heldout_file(self, domain: str) -> Path:
        """Return where a domain's held-out conversations lie, if it has no test data."""
        return self.path / "count" / f"{domain}.heldout.jsonl"

    def product_hash(self, name: str) -> str | None:
        """Return the hash of the product of a finished piece."""
        known = self._pieces.get(name)
        return None if known is None else str(known["product"])

    def facts(self, name: str) -> Mapping[str, Any]:
        """Return what is recorded of a finished piece."""
        return dict(self._pieces.get(name, {}).get("facts", {}))

    def seconds(self, name: str) -> float | None:
        """Return how long it took to make a finished piece."""
        return self._pieces.get(name, {}).get("seconds")

    def reason_to_make(self, piece: Piece, products: Mapping[str, str]) -> str | None:
        """Say why a piece is to be made, or None if it is there as it must be.

        Args:
            piece: the piece.
            products: hash of the product of each piece before it.
        """
        known = self._pieces.get(piece.name)
        if known is None:
            return "not made yet"
        if known["fingerprint"] != piece.fingerprint(products):
            return self.changed_inputs(piece, products) or "its inputs changed"
        for name, digest in known["files"].items():
            path = self.path / name
            if not path.is_file():
                return f"{name} is missing"
            if _sha256(path) != digest:
                return f"{name} was changed"
        return None

    def changed_inputs(self, piece: Piece, products: Mapping[str, str]) -> str | None:
        """Name the inputs that changed since a piece was made."""
        known = self._pieces.get(piece.name)
        if known is None:
            return "not made yet"
        old, new = known["inputs"], json.loads(json.dumps(dict(piece.inputs)))
        names = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
        names += [
            f"the product of {name}"
            for name in piece.needs
            if name in products and known["needs"].get(name) != products[name]
        ]
        return f"changed: {', '.join(names)}" if names else None

    def finished(
        self,
        piece: Piece,
        products: Mapping[str, str],
        files: list[Path],
        seconds: float,
        facts: Mapping[str, Any],
    ) -> str:
        """Record a finished piece.

        Args:
            piece: the piece.
            products: hash of the product of each piece before it.
            files: all files of its product.
            seconds: how long it took.
            facts: further JSON values to keep.

        Returns:
            The hash of its product.
        """
        hashes = {file.relative_to(self.path).as_posix(): _sha256(file) for file in sorted(files)}
        product = hashlib.sha256(json.dumps(hashes).encode()).hexdigest()
        self._pieces[piece.name] = {
            "fingerprint": piece.fingerprint(products),
            "inputs": dict(piece.inputs),
            "needs": {name: products[name] for name in piece.needs},
            "product": product,
            "files": hashes,
            "seconds": round(seconds, 3),
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "facts": dict(facts),
        }
        self.write_json(_RECORD, {"format": _FORMAT, "pieces": self._pieces})
        return product

    def begin(self) -> None:
        """Mark the folder as a run's, before anything is written to it."""
        if not (self.path / _RECORD).is_file():
            self.write_json(_RECORD, {"format": _FORMAT, "pieces": {}})

    def write_json(self, name: str, data: Any) -> None:
        """Write a JSON file at the top of the folder."""
        self.write_text(name, json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file at the top of the folder, in one step."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / name, text.encode("utf-8", "surrogatepass"))

    def tidy(self) -> None:
        """Remove what a killed run left half written; only the holder of the lock may do this."""
        for folder, names, files in os.walk(self.path):
            for name in [name for name in names if name.startswith(".")]:
                shutil.rmtree(Path(folder) / name)
                names.remove(name)
            for name in files:
                if name.startswith(".") and name != LOCK_FILE:
                    (Path(folder) / name).unlink()


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """Give a new folder to write into, which takes the place of `path` when all is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as temporary:
        new = Path(temporary) / "new"
        new.mkdir()
        yield new
        if path.exists():
            path.rename(Path(temporary) / "old")
        new.rename(path)


def files_in(folder: Path) -> list[Path]:
    """Return all files in and below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _read(record: Path) -> dict[str, dict[str, Any]]:
    wanted = ("fingerprint", "inputs", "needs", "product", "files", "facts")
    try:
        data = json.loads(record.read_text(encoding="utf-8"))
        pieces: dict[str, dict[str, Any]] = data["pieces"]
        whole = data["format"] == _FORMAT and all(
            all(key in piece for key in wanted) for piece in pieces.values()
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(
            f"{record} is no record of this release's runs: name another --run-folder, or delete "
            "the file to make everything anew"
        )
    return pieces


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
