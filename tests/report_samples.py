"""What the tests of reports share: folders as the commands leave them, and a strict reader."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from published_facts import make_report, make_training
from search_samples import step, two_domains, zipf
from vtrim_hf.coverage_metadata import check_metadata
from vtrim_hf.search import search_vocabulary
from vtrim_hf.search_result import SearchResult

WIDTH = 40_000
PNG = b"\x89PNG\r\n\x1a\n" + b"not looked at any further"

EVIL = (
    "</title></style></textarea>--><script>document.title='pwned'</script>"
    "<img src=x onerror=\"document.title='pwned'\">{{ 7 * 7 }}{% raw %}"
)
"""What would run, were it not escaped."""

_VOID = frozenset({"meta", "link", "img", "br", "hr"})
_FETCHING = ("src", "href", "xlink:href", "srcset", "data", "action", "poster", "background")


class _Config:
    vocabulary_fingerprint = "f" * 64


class _Draft:
    config = _Config()


def make_search() -> SearchResult:
    """A result over two domains, one of them with a floor, and the usual 32,000 to compare."""
    counts = two_domains(zipf(WIDTH, seed=1), zipf(WIDTH, 400, seed=2))
    options: dict[str, Any] = {"min_coverage": 0.9, "domain_floors": {"sql": 0.95}}
    return search_vocabulary(counts, step(WIDTH), progress=False, **options)


def training() -> dict[str, Any]:
    """What a training report holds."""
    return {**make_training(_Draft()), "finished": True}


def coverage_facts() -> dict[str, Any]:
    """Facts of a draft, with tokens that it cannot say."""
    facts = {
        "format_version": 1,
        "target": {"id": "user/target", "vocab_size": 300, "tokenizer_hash": "e" * 64},
        "draft": {"body": "eagle3", "k": 30, "share_of_vocabulary": 0.1, "fingerprint": "f" * 64},
        "coverage": {
            "heldout": {"share": 0.97, "interval": [0.96, 0.98], "tokens": 1234},
            "search": {"share": 0.99},
            "domains": {"sql": {"heldout": {"share": 0.97, "tokens": 1234}, "weak": False}},
        },
        "most_missed_tokens": {
            "of": "heldout",
            "tokens": [{"id": 40, "count": 7, "share": 0.007, "text": " zebra"}],
        },
    }
    check_metadata(facts)
    return facts


def figures() -> dict[str, Any]:
    """Figures as a benchmark leaves them."""
    spread = {"median": 2.0, "q25": 1.8, "q75": 2.2, "low": 1.9, "high": 2.1}
    return {
        "target": "smollm2",
        "prompts": 24,
        "command": "python bench.py --prompts 24",
        "baseline": "plain bfloat16",
        "over_plain": {"trimmed": spread, "full": {**spread, "median": 1.5}},
        "acceptance_by_position": {"trimmed": [0.6, 0.4], "full": [0.5, 0.3]},
        "deep": {"one": {"two": {"three": [{"a": 1, "b": 0.25}, {"a": 2, "b": 0.5}]}}},
        "machine": {"cpu": "Test CPU", "threads": 2},
    }


def write_json(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")


def make_folder(folder: Path, search: SearchResult) -> Path:
    """A folder with one file of each kind, but of no run."""
    search.save(folder / "search" / "search.json")
    (folder / "search" / "search.png").write_bytes(PNG)
    write_json(folder / "draft" / "training_report.json", training())
    write_json(folder / "draft" / "vtrim" / "coverage.json", coverage_facts())
    write_json(folder / "draft" / "config.json", {"secret": "of the model itself"})
    (folder / "measure").mkdir()
    make_report(30).save(folder / "measure" / "decode_report.json")
    write_json(folder / "bench" / "figures.json", figures())
    (folder / "bench" / "report.md").write_text(
        "# A bench\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    )
    (folder / "bench" / "report.png").write_bytes(PNG)
    return folder


def hostile(folder: Path, search: SearchResult) -> Path:
    """A folder in which every text that a page shows tries to be more than text."""
    folder = folder / "a <b> & 'c'"
    folder.mkdir(parents=True)
    data = json.loads(make_report(30).to_json())
    data["entries"] = {
        name.replace("full", EVIL): {"facts": {**entry["facts"], EVIL: EVIL}}
        for name, entry in data["entries"].items()
    }
    for row in data["rows"]:
        row["entries"][EVIL] = row["entries"].pop("full")
        row["entries"]["draft"]["missing"] = [[40, 3, EVIL], [41, 2, "\u202e\x00\ud800"]]
        row["entries"]["draft"]["parts"] = {EVIL: 0.5}
        for entry in row["entries"].values():
            entry["parts"] = {EVIL: 0.5}
    data |= {"machine": {"cpu": EVIL, EVIL: 1}, "remarks": [EVIL], "settings": {EVIL: EVIL}}
    write_json(folder / "decode_report.json", data)
    result = json.loads(json.dumps(search.to_dict()).replace('"sql"', json.dumps(EVIL)))
    write_json(folder / "search.json", result)
    told = training()
    told["settings"] |= {EVIL: EVIL, "lr_scheduler_type": EVIL}
    told["fingerprints"] |= {EVIL: EVIL}
    write_json(folder / "training_report.json", told)
    facts = coverage_facts()
    facts["most_missed_tokens"]["tokens"][0]["text"] = EVIL
    write_json(folder / "vtrim" / "coverage.json", facts)
    name = folder / "<img src=x onerror=alert(1)>"
    write_json(name / "figures.json", {EVIL: EVIL, "x": {EVIL: {EVIL: 1}}, **figures()})
    write_json(name / "<b>.json", [EVIL, {"command": EVIL}])
    (name / "report.md").write_text(
        f"# {EVIL}\n\n[a](javascript:alert(1)) ![b](http://x.example/b.png) <http://x.example>\n\n"
        f"| {EVIL} | b |\n| --- | --- |\n| {EVIL} | [c](http://x.example) |\n\n"
        f"```{EVIL}\n{EVIL}\n```\n"
        f"\n[d]: http://x.example\n\n{EVIL}\n\n<script>document.title='pwned'</script>\n"
    )
    (name / "x.svg").write_text(
        "<svg xmlns='http://www.w3.org/2000/svg' onload=\"document.title='pwned'\"/>"
    )
    (name / "x.png").write_bytes(PNG)
    write_json(folder / "run.json", {"pieces": {EVIL: {"seconds": EVIL, "finished": EVIL}}})
    summary = dict.fromkeys(("recipe", "target", "draft", "drafts_are", "goal"), EVIL)
    draft = {"name": EVIL, "published": {EVIL: EVIL}, "weak_domains": [EVIL], "k": EVIL}
    write_json(
        folder / "report.json",
        {
            **summary,
            "domains": [{EVIL: EVIL}],
            "drafts": [draft],
            "versions": {"python": EVIL, "packages": {EVIL: EVIL}},
            "pieces": [{"piece": f"measure {EVIL}", "step": "measure", "status": EVIL}],
        },
    )
    (folder / "recipe.yaml").write_text(EVIL)
    return folder


class Page(HTMLParser):
    """A page, read strictly: every element closed where it must be, every id there once.

    Attributes:
        text: all text that a reader sees, scripts and styles left out.
        tables: rows of cells of each table, by its caption.
        tags: how often each element stands in the page.
        attributes: every attribute, as (element, name, value).
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.tables: dict[str, list[list[str]]] = {}
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self._open: list[str] = []
        self._rows: list[list[str]] = []
        self._caption = ""
        body = html.removeprefix("<!DOCTYPE html>\n")
        assert body != html
        self.root = ElementTree.fromstring(body)  # well-formed as XML is, so in HTML too
        self.feed(html)
        self.close()
        assert not self._open, self._open
        ids = Counter(value for _, name, value in self.attributes if name == "id")
        assert set(ids.values()) <= {1}, [one for one, number in ids.items() if number > 1]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag in _VOID:
            return
        self._open.append(tag)
        if tag == "table":
            self._rows, self._caption = [], ""
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, tag
        assert self._open.pop() == tag
        if tag == "table":
            self.tables[self._caption.strip()] = self._rows

    def handle_data(self, data: str) -> None:
        if {"style", "script"} & set(self._open):
            return
        self.text += data
        if "caption" in self._open:
            self._caption += data
        elif {"td", "th"} & set(self._open) and "table" in self._open:
            self._rows[-1][-1] += data

    def fetched(self) -> list[str]:
        """All that a browser would fetch or follow, places in the page and data URIs left out."""
        values = [v for _, name, v in self.attributes if name in _FETCHING]
        return [v for v in values if not v.startswith(("#", "data:"))]

    def check_harmless(self) -> None:
        """Fail if anything runs, or is loaded from anywhere."""
        assert self.fetched() == []
        active = {"script", "iframe", "object", "embed", "base", "form", "input", "audio", "video"}
        active |= {"foreignobject", "animate", "set", "image"}
        assert not active & set(self.tags)
        assert not [name for _, name, _ in self.attributes if name.startswith("on")]
        for tag, name, value in self.attributes:
            assert "javascript:" not in value.lower() or tag == "section", (tag, name, value)
            if tag in ("img", "link") and name in ("src", "href"):
                assert value.startswith("data:"), value
            if name == "style":
                assert "url(" not in value.replace("url(#", ""), value
