"""The raw files of the benchmarks' data: read from a folder, or downloaded once and checked."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from domain_formats import Row, parsed_lines
from domain_sources import Source

TRIES = 4
BLOCK = 1 << 18


class Files:
    """Raw files: read from a folder, or downloaded into a cache and read from there.

    Args:
        raw: folder with files at OWNER/REPOSITORY/PATH; nothing is downloaded then.
        cache: folder for downloads, at OWNER/REPOSITORY/COMMIT/PATH.
        base_url: what stands before that in the address.
        pause: seconds before a download is tried again; doubled each time.
    """

    def __init__(self, raw: Path | None, cache: Path, base_url: str, pause: float = 2.0) -> None:
        self.raw, self.cache, self.base_url, self.pause = raw, cache, base_url, pause
        self.remarks: list[str] = []

    def bytes_of(self, source: Source) -> bytes:
        """Return a file's bytes, checked where their hash is known.

        Raises:
            SystemExit: if it cannot be had, or is another than was asked for.
        """
        if self.raw is not None:
            place = self.raw / source.place
            if not place.is_file():
                raise SystemExit(f"--raw {self.raw} must hold {source.place}, which it does not")
        else:
            repository = source.repository
            at = f"{repository.name}/{repository.commit}/{source.path}"
            place = self.cache / at
            if not place.is_file():
                self._download(at, place)
        data = place.read_bytes()
        if source.convert is None and source.sha256:
            found = hashlib.sha256(data).hexdigest()[:16]
            if found != source.sha256:
                if self.raw is None:
                    place.unlink()  # so that the next run gets it anew
                raise SystemExit(
                    f"{source.place} must have a sha256 that begins with {source.sha256}, got "
                    f"{found} ({len(data):,} bytes of {place}): it was changed on its way; run "
                    "the same command again"
                )
        return data

    def rows(self, source: Source) -> list[Row]:
        """Return a file's rows; where they differ from what is known of them, a remark is kept."""
        data = self.bytes_of(source)
        if source.convert is None:
            return parsed_lines(data)
        rows = source.convert(data)
        if source.sha256:
            self.check(source.place, rows, source.sha256)
        return rows

    def check(self, name: str, rows: Iterable[Row], sha256: str) -> None:
        """Keep a remark if rows are not the known ones: they can be used, but figures differ."""
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        found = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()[:16]
        if found != sha256:
            self.remarks.append(
                f"{name}: these {len(lines):,} rows are not those that the published figures are "
                f"of (sha256 {found}, not {sha256})"
            )

    def _download(self, at: str, place: Path) -> None:
        url = f"{self.base_url.rstrip('/')}/{urllib.request.quote(at)}"
        part = place.with_name(place.name + ".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(TRIES):
            try:
                fetch(url, part)
            except urllib.error.HTTPError as error:
                error.close()
                # 429 and 5xx pass; 416 is a rest of a part that is no longer one.
                if error.code == 416:
                    part.unlink(missing_ok=True)
                elif error.code != 429 and error.code < 500:
                    raise SystemExit(f"{url}: {error.code} {error.reason}") from None
                problem = f"{error.code} {error.reason}"
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or type(error).__name__
            else:
                part.replace(place)
                return
            if attempt + 1 < TRIES:
                time.sleep(self.pause * 2**attempt)
        raise SystemExit(
            f"{url} could not be downloaded in {TRIES} tries, the last one ended with: {problem}. "
            "Run the same command again to go on; --raw reads files that are here already"
        )


def fetch(url: str, part: Path) -> None:
    """Download into a file, or go on with one that was begun.

    Raises:
        OSError: if the connection fails, or ends before all is there.
    """
    begun = part.stat().st_size if part.is_file() else 0
    asked = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if begun:
        asked.add_header("Range", f"bytes={begun}-")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        goes_on = begun > 0 and answer.status == 206
        expected = answer.headers.get("Content-Length")
        got = 0
        with part.open("ab" if goes_on else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                got += len(block)
    if expected is not None and got != int(expected):
        raise OSError(f"it ended after {got:,} of {int(expected):,} bytes")


def default_cache() -> Path:
    """Return where downloads stay: beside what the package keeps."""
    if own := os.environ.get("VTRIM_CACHE"):
        return Path(own).expanduser() / "downloads"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "vtrim_hf/downloads"


def progress(name: str, done: int, number: int) -> None:
    """Show how far it is, on a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done == number else ""
        print(f"\r{name} {done}/{number}", end=end, file=sys.stderr, flush=True)
