"""What the command lines of benchmarks share: places, data, dtypes, time."""

from __future__ import annotations

import argparse
import math
import os
import re
from pathlib import Path

DTYPES = ("bfloat16", "float16", "float32", "float64")
LONGEST = 60 * 24 * 365  # minutes, what any timer can be set to


def add_places(parser: argparse.ArgumentParser, name: str) -> None:
    """Add where results go, where raw rows lie, and how long a benchmark may take.

    Results are committed; raw rows are large, and tell of one machine only.
    """
    parser.add_argument("--minutes", type=minutes, default=80, help="after which it ends")
    output = Path("examples/evidence") / name
    parser.add_argument(
        "--output", type=results_folder, default=output, help="folder of the results"
    )
    work = Path("runs") / f"bench_{name}"
    parser.add_argument(
        "--work", type=results_folder, default=work, help="folder of what is measured, raw"
    )


def add_dtype(parser: argparse.ArgumentParser, of: str) -> None:
    """Add the dtype of models; `of` says of which."""
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help=of)


def minutes(word: str) -> float:
    """Return a time that a timer can be set to.

    Raises:
        argparse.ArgumentTypeError: if it is none.
    """
    try:
        found = float(word)
    except ValueError:
        found = math.nan
    if not -LONGEST <= found <= LONGEST:  # nan is neither
        raise argparse.ArgumentTypeError(
            f"must be a number of minutes of at most {LONGEST:,}, got {word}: name such a number, "
            "80 for instance"
        )
    return found


def at_least_one(word: str) -> int:
    """Return a whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: if it is none.
    """
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {word}")
    return int(word)


def results_folder(place: str) -> Path:
    """Return a folder that can be written to, or made; nothing is made yet.

    So that this is known before anything is measured.

    Raises:
        argparse.ArgumentTypeError: if it is a file, or cannot be written to or made.
    """
    folder = Path(place)
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not there.is_dir():
        raise argparse.ArgumentTypeError(
            f"{place} must be a folder, and {there} is a file: name another place"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(
            f"{place} must be a folder that can be written to, and {there} is none: name another "
            "place"
        )
    return folder


def data_folder(place: str) -> Path:
    """Return the folder of data that `--data` names: one here, or a data set of the Hub.

    The latter is downloaded into runs/data, so that reports name a place that tells its origin.

    Raises:
        argparse.ArgumentTypeError: if it is neither.
    """
    here = Path(place)
    if here.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", place):
        return here  # what is missing in there, or that it is missing, each script says itself
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    there = Path("runs") / "data" / place.replace("/", "--")
    try:
        snapshot_download(place, repo_type="dataset", local_dir=there)
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(
            f"{place} must be a folder, or the Hub id of a data set: there is no such folder "
            f"here, and to download it failed: {error}"
        ) from error
    return there
