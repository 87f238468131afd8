"""The data of the benchmarks, built from public sources: chat domains as folders of JSON lines.

    python examples/build_domains.py domains
    python examples/build_domains.py domains --only sql math ood

Writes OUT/<domain>/train.jsonl and test.jsonl, one conversation a line as `messages` and its
`source`, OUT/ood/<set>.jsonl for data that no domain trains on, and OUT/SOURCES.md with every
source and its licence. About 40 MB come from GitHub, each file at one commit; what is downloaded
stays in a cache folder, and the same command goes on where it was interrupted. A few minutes: the
medical domain alone is 608 small files.

Splits are the upstream ones where there are any; else the prompt's hash decides, so that no prompt
is in both. Of MedQuAD, 608 whole files are taken, drawn once at random and listed in
domain_sources.py.

`--raw FOLDER` reads FOLDER/OWNER/REPOSITORY/PATH instead, such as clones side by side. Python
alone is needed, no package, and the `domain_*.py` beside this file: the sources, how their files
are fetched and read, and what each domain makes of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from domain_files import Files, default_cache, progress
from domain_formats import Row
from domain_rows import DOMAINS, OOD, USED

GITHUB = "https://raw.githubusercontent.com"


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8", newline="")
    beside.replace(path)


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write JSON lines; return how many."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    write_text(path, "".join(lines))
    return len(lines)


def build(name: str, files: Files, out: Path) -> str:
    """Write a domain's two files; return what is told of it."""
    parts: dict[str, list[Row]] = {"train": [], "test": []}
    for split, row in DOMAINS[name](files):
        parts[split].append(row)
    asked = {row["messages"][0]["content"] for row in parts["test"]}
    parts["train"] = [r for r in parts["train"] if r["messages"][0]["content"] not in asked]
    for split, rows in parts.items():
        random.Random(0).shuffle(rows)
        write_rows(out / name / f"{split}.jsonl", rows)
    return f"{name:17}train {len(parts['train']):6,}  test {len(parts['test']):6,}"


def sources() -> str:
    """Return where everything is from, as Markdown."""
    lines = [
        "# Sources",
        "",
        "Made by `examples/build_domains.py` of vtrim_hf. A repository's licence covers what its",
        "owner could license: answers of closed models carry their providers' terms, those of",
        "open ones the models' licences. Look at it before you train on or pass on any of this.",
        "",
        "| folder | repository | commit | files | licence |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, used in USED.items():
        for repository in dict.fromkeys(source.repository for source in used):
            paths = [source.path for source in used if source.repository == repository]
            shown = ", ".join(f"`{path}`" for path in paths[:3])
            shown += f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            link = f"[{repository.name}](https://github.com/{repository.name})"
            lines.append(
                f"| {name} | {link} | {repository.commit[:12]} | {shown} | {repository.license} |"
            )
    return "\n".join([*lines, ""])


def main(argv: Sequence[str] | None = None) -> None:
    """Build what was asked for."""
    names = [*DOMAINS, "ood"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the domains")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--raw", type=Path, help="folder of raw files, to download nothing")
    parser.add_argument("--cache", type=Path, help="where downloads stay; default: in the cache")
    parser.add_argument("--base-url", default=GITHUB, help="a mirror of GitHub's raw files")
    args = parser.parse_args(argv)
    if args.raw is not None and not args.raw.is_dir():
        parser.error(f"--raw must be a folder, got {args.raw}")
    files = Files(args.raw, args.cache or default_cache(), args.base_url)
    for name in dict.fromkeys(args.only):
        used = USED[name]
        for number, source in enumerate(used, 1):
            files.bytes_of(source)
            progress(f"{name}: files", number, len(used))
        if name == "ood":
            for made, make in OOD.items():
                number = write_rows(args.out / "ood" / f"{made}.jsonl", make(files))
                print(f"{'ood/' + made:17}{number:12,}")
        else:
            print(build(name, files, args.out))
    write_text(args.out / "SOURCES.md", sources())
    for remark in dict.fromkeys(files.remarks):
        print(f"note: {remark}", file=sys.stderr)


if __name__ == "__main__":
    main()
