"""How fast counting is beside bare tokenisation, and whether its memory grows with the data.

    python examples/bench_counting.py
    python examples/bench_counting.py --data chats.jsonl --tokenizer Qwen/Qwen2.5-0.5B-Instruct

Without arguments: SmolLM2's tokenizer, and chats made of Python's own sources. The yardstick is
`encode_batch_fast` on the rendered conversations: it only tokenises. Counting reads rows, hashes
and renders them, finds the assistant's turns, tokenises and sums. Both take turns in one process.
Memory is watched (on Linux) in a fresh process that counts a file, once as it is and once eight
times as long.
"""

from __future__ import annotations

import argparse
import ast
import json
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vtrim_hf.embedded_models import load_tokenizer
from vtrim_hf.token_counts import TokenCounts

TIMES = (4, 32)  # the file is so many times the chats, each time with other questions


def python_chats() -> Iterator[dict[str, Any]]:
    """Make chats of Python's standard library: a function's name is asked, its source told."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source = path.read_text("utf-8", "replace")
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef):
                continue
            text = ast.get_source_segment(source, node) or ""
            asked = {"role": "user", "content": f"Show {node.name} of the module {path.stem}."}
            if 0 < len(text) < 8000:
                yield {"messages": [asked, {"role": "assistant", "content": text}]}


def read_chats(path: str | None, limit: int) -> list[dict[str, Any]]:
    if path is None:
        return list(python_chats())[:limit]
    with Path(path).open(encoding="utf-8") as file:
        return [json.loads(line) for line, _ in zip(file, range(limit), strict=False)]


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def speed(rows: list[dict[str, Any]], tokenizer: Any, repeats: int) -> None:
    texts = [tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in rows]
    backend = tokenizer.backend_tokenizer
    tokens = sum(len(e.ids) for e in backend.encode_batch_fast(texts, add_special_tokens=False))

    def bare() -> None:
        backend.encode_batch_fast(texts, add_special_tokens=False)

    def count() -> TokenCounts:
        return TokenCounts.from_dataset(rows, tokenizer, cache_dir=False, progress=False)

    counts = count()  # both have run once before the clock does
    taken = [(timed(bare), timed(count)) for _ in range(repeats)]
    own = counts.total("all")
    print(f"{len(rows)} conversations, {tokens} tokens, of them {own} the assistant's")
    for name, seconds in zip(
        ("encode_batch_fast", "TokenCounts"), zip(*taken, strict=True), strict=True
    ):
        middle = statistics.median(seconds)
        print(
            f"{name:18} {middle:7.3f} s ({min(seconds):.3f} to {max(seconds):.3f})  "
            f"{tokens / middle / 1e6:6.3f} M tokens/s"
        )
    ratios = sorted(bare_s / count_s for bare_s, count_s in taken)
    middle = statistics.median(ratios)
    print(f"speed of counting  {middle:.2f} of it ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def write_times(rows: list[dict[str, Any]], times: int, path: Path) -> Path:
    """Write the chats so many times, never one twice."""
    with path.open("w", encoding="utf-8") as file:
        for copy in range(times):
            for row in rows:
                first, *rest = row["messages"]
                asked = {**first, "content": f"{copy}: {first['content']}"}
                file.write(json.dumps({"messages": [asked, *rest]}) + "\n")
    return path


def memory(rows: list[dict[str, Any]], tokenizer_name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for times in TIMES:
            path = write_times(rows, times, Path(folder) / f"{times}.jsonl")
            command = [
                sys.executable,
                __file__,
                "--tokenizer",
                tokenizer_name,
                "--count",
                str(path),
            ]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            size = path.stat().st_size / 2**20
            print(f"{times // TIMES[0]} x the data: {size:7.1f} MiB read; {output.strip()}")


def resident() -> float:
    """Memory that this process holds now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def grown(work: Callable[[], Any]) -> tuple[float, float]:
    """Watch the memory during some work: before it, and the most that came on top (MiB)."""
    before, seen, done = resident(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            seen.append(resident() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return before, max(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", default="smollm2", help="Hub id, folder or embedded model")
    parser.add_argument("--data", help="JSON lines with messages")
    parser.add_argument("--limit", type=int, default=4000, help="conversations at most")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--count", help=argparse.SUPPRESS)
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.tokenizer)
    if options.count:
        before, more = grown(
            lambda: TokenCounts.from_dataset(
                options.count, tokenizer, cache_dir=False, progress=False
            )
        )
        print(f"{before:.0f} MiB before, at most {more:.0f} MiB more while counting")
        return
    rows = read_chats(options.data, options.limit)
    speed(rows, tokenizer, options.repeats)
    memory(rows, options.tokenizer)


if __name__ == "__main__":
    main()
