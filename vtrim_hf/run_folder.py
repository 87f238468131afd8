"""A run's folder: which pieces are finished, what went into them, and where their products lie.

recipe.yaml  versions.json  run.json  report.json  report.md
count/sql.safetensors ...           one file a domain, and the target's answers
search/ draft/ measure/ publish/    of the one draft; of several, below domains/<domain>/
.train.<hash>.training/             beside draft/ while it is trained: checkpoints, to go on from
train.tensorboard/                  beside draft/, where the recipe asks for it: logs, which stay
"""

from __future__ import annotations

import hashlib
import json
import re
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
_REPORTS = ("report.json", "report.md")
_TEMPORARY = ".vtrim-tmp-"
# What `write_atomically` leaves of our own files, when it is killed: `.NAME.` and 8 characters.
_HALF_WRITTEN = {
    ".": re.compile(r"\.(run|report|versions)\.json\.\w{8}|\.(report\.md|recipe\.yaml)\.\w{8}"),
    "count": re.compile(r"\.[\w.-]+\.(safetensors|(heldout|training|evaluation)\.jsonl)\.\w{8}"),
    "measure": re.compile(r"\.decode_report\.(json|png)\.\w{8}"),
}
_FOLDERS = {
    "search": "search",
    "trim": "draft",
    "train": "draft",
    "measure": "measure",
    "publish": "publish",
}
_WORKPLACE = "train"
_WORKPLACES = re.compile(r"\.train\.[0-9a-f]{12}\.training")


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
        self._repositories: list[list[str]] = []
        if path.exists() and not path.is_dir():
            raise ValueError(f"the run folder {path} is a file: name another with --run-folder")
        record = path / _RECORD
        if record.is_file():
            self._pieces, self._repositories = _read(record)
        elif path.is_dir() and any(path.iterdir()) and not (path / LOCK_FILE).is_file():
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

    def training_file(self, domain: str) -> Path:
        """Return where the conversations lie that a draft is trained on."""
        return self.path / "count" / f"{domain}.training.jsonl"

    def evaluation_file(self, domain: str) -> Path:
        """Return where the conversations lie that choose a draft's best checkpoint."""
        return self.path / "count" / f"{domain}.evaluation.jsonl"

    def workplace(self, scope: str | None) -> Path:
        """Return the path beside which a draft's training keeps what it goes on from.

        It is not the draft's own folder, and nothing is ever there: a draft that lies where it
        belongs would be taken for the training's result, even if somebody changed it since.
        """
        return self.folder_of("train", scope).with_name(_WORKPLACE).resolve()

    def tidy_after(self, piece: Piece) -> None:
        """Remove what trainings left to go on from, once a draft is there as it is wanted now."""
        if piece.step not in ("trim", "train"):
            return
        for path in self.workplace(piece.scope).parent.glob(f".{_WORKPLACE}.*"):
            if _WORKPLACES.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)

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
        reason = self.changed_inputs(piece, products)
        if reason is not None:
            return reason
        known = self._pieces[piece.name]
        if known["fingerprint"] != piece.fingerprint(products):
            return "its inputs changed"
        for name, digest in known["files"].items():
            path = self.path / name
            if not path.is_file():
                return f"{name} is missing"
            if _sha256(path) != digest:
                return f"{name} was changed"
        return None

    def changed_inputs(self, piece: Piece, products: Mapping[str, str]) -> str | None:
        """Name the inputs that changed since a piece was made, or say that it never was."""
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
        self._save()
        return product

    def begin(self) -> None:
        """Mark the folder as a run's, and take away what an earlier recipe's run reported.

        Only the holder of the lock may do this, and what a killed run left half written goes, too.
        """
        if not (self.path / _RECORD).is_file():
            self._save()
        self._tidy()
        for name in _REPORTS:
            (self.path / name).unlink(missing_ok=True)

    def owns(self, endpoint: str, repo_id: str) -> bool:
        """Tell whether a repository got its content from this folder's runs."""
        return [endpoint, repo_id] in self._repositories

    @contextmanager
    def publishing(self, endpoint: str, repo_id: str, *, proposed: bool) -> Iterator[bool]:
        """Note a repository as this folder's own before it is made, for a kill may follow.

        Args:
            endpoint: of the Hub.
            repo_id: a repository that is free, or may be written to.
            proposed: whether the change is only proposed, which makes nothing ours.

        Yields:
            Whether it was this folder's own before.
        """
        own = self.owns(endpoint, repo_id)
        if own or proposed:
            yield own
            return
        self._repositories.append([endpoint, repo_id])
        self._save()
        try:
            yield False
        except (OSError, TypeError, ValueError) as error:
            if _changed_nothing(error):  # so what is there, if anything, is somebody else's
                self._repositories.remove([endpoint, repo_id])
                self._save()
            raise

    def _save(self) -> None:
        known = {"pieces": self._pieces, "repositories": self._repositories}
        self.write_json(_RECORD, {"format": _FORMAT, **known})

    def write_json(self, name: str, data: Any) -> None:
        """Write a JSON file at the top of the folder."""
        self.write_text(name, json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file at the top of the folder, in one step."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / name, text.encode("utf-8", "surrogatepass"))

    def _tidy(self) -> None:
        """Remove what a killed run left half written, and nothing that a user put here."""
        bases = [self.path, *(self.path / "domains").glob("*")]
        for base in bases:
            for left in base.glob(f"{_TEMPORARY}*"):
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left)
            for folder, name in _HALF_WRITTEN.items():
                for file in (base / folder).glob(".*"):
                    if name.fullmatch(file.name) and file.is_file():
                        file.unlink()


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """Give a new folder to write into, which takes the place of `path` when all is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=_TEMPORARY) as temporary:
        new = Path(temporary) / "new"
        new.mkdir()
        yield new
        if path.exists():
            path.rename(Path(temporary) / "old")
        new.rename(path)


def files_in(folder: Path) -> list[Path]:
    """Return all files in and below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _changed_nothing(error: Exception) -> bool:
    """Tell whether publishing failed before it did anything, or could have without knowing it."""
    from .hub_errors import is_passing

    lost = error.__cause__ is not None and is_passing(error.__cause__)
    return not lost and not getattr(error, "done", ())


def _read(record: Path) -> tuple[dict[str, dict[str, Any]], list[list[str]]]:
    try:
        data = json.loads(record.read_text(encoding="utf-8"))
        pieces: dict[str, dict[str, Any]] = data["pieces"]
        repositories: list[list[str]] = data.get("repositories", [])
        whole = (
            data["format"] == _FORMAT
            and all(_is_piece(piece) for piece in pieces.values())
            and all(_are_texts(one) and len(one) == 2 for one in repositories)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(
            f"{record} is no record of this release's runs: name another --run-folder, or delete "
            "the file to make everything anew"
        )
    return pieces, repositories


def _is_piece(piece: Any) -> bool:
    """Tell whether what is recorded of a piece has the form that `finished` gives it."""
    seconds = piece["seconds"]
    return (
        all(isinstance(piece[key], str) for key in ("fingerprint", "product"))
        and all(isinstance(piece[key], dict) for key in ("inputs", "needs", "files", "facts"))
        and _are_texts([*piece["needs"].values(), *piece["files"].values()])
        and isinstance(seconds, int | float)
    )


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
