"""How the upstream files of the benchmarks' data are read: bytes into rows."""

from __future__ import annotations

import csv
import gzip
import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Row = dict[str, Any]
Converter = Callable[[bytes], list[Row]]


def parsed_lines(data: bytes) -> list[Row]:
    """Read JSON lines."""
    return [json.loads(line) for line in data.decode().split("\n") if line.strip()]


def array(data: bytes) -> list[Row]:
    """Read one JSON array."""
    rows: list[Row] = json.loads(data)
    return rows


def array_without(*fields: str) -> Converter:
    """Read one JSON array and leave some fields of its rows out."""
    return lambda data: [without(row, fields) for row in json.loads(data)]


def lines_without(*fields: str) -> Converter:
    """Read JSON lines and leave some fields of the rows out."""
    return lambda data: [without(row, fields) for row in parsed_lines(data)]


def without(row: Row, fields: Sequence[str]) -> Row:
    """Leave fields out."""
    return {name: value for name, value in row.items() if name not in fields}


def unzipped(data: bytes) -> list[Row]:
    """Read JSON lines that are compressed."""
    return parsed_lines(gzip.decompress(data))


def table(data: bytes) -> list[Row]:
    """Read comma-separated values with a line of names."""
    return list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))


def by_pmid(data: bytes) -> list[Row]:
    """Read PubMedQA: one JSON object, articles by their number."""
    return [{"pmid": pmid, **row} for pmid, row in json.loads(data).items()]


def sampled(data: bytes) -> list[Row]:
    """Read a report of sampled answers: a row a prompt and sampling configuration."""
    report = json.loads(data)
    return [
        {
            "model_name": report["model_name"],
            "prompt": prompt["prompt"],
            "sampling_config": result["sampling_config"],
            "outputs": result["outputs"],
        }
        for prompt in report["prompts"]
        for result in prompt["results"]
    ]


def questions_and_answers(path: str, data: bytes) -> Iterator[Row]:
    """Read a MedQuAD file; pairs without an answer are left out."""
    document = ElementTree.fromstring(data)
    for pair in document.iter("QAPair"):
        question, answer = pair.find("Question"), pair.find("Answer")
        text = "" if answer is None else (answer.text or "").strip()
        if question is not None and text:
            yield {
                "folder": path.partition("/")[0],
                "file": path,
                "source": document.get("source"),
                "url": document.get("url"),
                "focus": (document.findtext("Focus") or "").strip(),
                "qid": question.get("qid"),
                "qtype": question.get("qtype"),
                "question": (question.text or "").strip(),
                "answer": text,
            }


def tagged(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Read sentences in columns, the word first and the tag last, and blank lines between."""
    words: list[str] = []
    tags: list[str] = []
    for line in [*text.split("\n"), ""]:
        columns = line.split()
        if columns and columns[0] != "-DOCSTART-":
            words.append(columns[0])
            tags.append(columns[-1])
        elif words:
            yield words, tags
            words, tags = [], []


def entities(words: Sequence[str], tags: Sequence[str]) -> dict[str, list[str]]:
    """Join tagged words into entities, by kind; "B" begins one, and so does "I" of a new kind."""
    spans: list[tuple[str, list[str]]] = []
    inside = None
    for word, tag in zip(words, tags, strict=True):
        mark, _, kind = tag.partition("-")
        if mark not in ("B", "I"):
            inside = None
            continue
        if mark == "B" or kind != inside:
            spans.append((kind, []))
        spans[-1][1].append(word)
        inside = kind
    found: dict[str, list[str]] = {}
    for kind, span in spans:
        found.setdefault(kind, []).append(" ".join(span))
    return found
