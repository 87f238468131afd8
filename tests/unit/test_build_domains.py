"""The data of the benchmarks: conversions, splits, downloads that are cut, wrong or missing."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PARTS = ("rows", "files", "formats", "sources")

pytestmark = pytest.mark.newest  # Python alone is needed, no package


@dataclass(frozen=True)
class Script:
    """The script, and the modules beside it."""

    main: Any
    rows: Any
    files: Any
    formats: Any
    sources: Any


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.syspath_prepend(EXAMPLES)
    beside = {name: importlib.import_module(f"domain_{name}") for name in PARTS}
    monkeypatch.setattr(beside["files"].time, "sleep", lambda seconds: None)
    return Script(importlib.import_module("build_domains").main, **beside)


def dumped(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def digest(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:16]


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def turns(path: Path) -> list[list[str]]:
    rows = read(path)
    roles = ["user", "assistant"] * 2
    for row in rows:
        assert [m["role"] for m in row["messages"]] == roles[: len(row["messages"])]
        assert set(row) == {"messages", "source"}
    return sorted([m["content"] for m in row["messages"]] for row in rows)


class Raw:
    """A tiny tree of raw files, which the script takes for the real ones."""

    def __init__(self, script: Script, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script, self.folder, self.monkeypatch = script, folder, monkeypatch
        self.files: dict[str, bytes] = {}

    def put(self, source: Any, data: bytes | str) -> Any:
        """Write a file; return its source, with the hash of what was written."""
        data = data.encode() if isinstance(data, str) else data
        place = self.folder / source.place
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        self.files[f"{source.repository.name}/{source.repository.commit}/{source.path}"] = data
        if source.convert is None:
            return replace(source, sha256=digest(data) if source.sha256 else "")
        return replace(source, sha256=digest(dumped(source.convert(data))))

    def use(self, domain: str, **sources: tuple[Any, bytes | str]) -> None:
        """Put the script's constants of a domain, by name."""
        made = {name: self.put(*pair) for name, pair in sources.items()}
        for name, source in made.items():
            self.monkeypatch.setattr(self.script.rows, name, source)
        self.monkeypatch.setitem(self.script.rows.USED, domain, tuple(made.values()))


@pytest.fixture
def raw(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Raw:
    return Raw(script, tmp_path / "raw", monkeypatch)


def run(raw: Raw, out: Path, *names: str) -> None:
    raw.script.main([str(out), "--raw", str(raw.folder), "--only", *names])


def use_math(raw: Raw) -> None:
    domains = raw.script.rows
    train = [{"question": f"How many, {i}?", "answer": f"#### {i}"} for i in range(5)]
    test = [{"question": "How many, 3?", "answer": "#### 3"}, {"question": "Far?", "answer": "9"}]
    raw.use(
        "math",
        GSM8K_TRAIN=(domains.GSM8K_TRAIN, dumped(train)),
        GSM8K_TEST=(domains.GSM8K_TEST, dumped(test)),
    )


class TestConversions:
    def test_math_and_no_prompt_in_both_parts(
        self, raw: Raw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        use_math(raw)
        run(raw, tmp_path / "out", "math")
        train = turns(tmp_path / "out/math/train.jsonl")
        assert train == [[f"How many, {i}?", f"#### {i}"] for i in (0, 1, 2, 4)]
        assert turns(tmp_path / "out/math/test.jsonl") == [
            ["Far?", "9"],
            ["How many, 3?", "#### 3"],
        ]
        said = capsys.readouterr()
        assert "train      4  test      2" in said.out
        assert said.err == ""

    def test_sql(self, raw: Raw, tmp_path: Path) -> None:
        syn = {"db_id": "farm", "SpiderQuestion": "Old?", "SpiderSynQuestion": "How many?"}
        dev = {
            "db_id": "bank",
            "question": "Who?",
            "query": "SELECT 2",
            "sql": {},
            "query_toks": [],
        }
        raw.use(
            "sql",
            SPIDER_SYN=(raw.script.rows.SPIDER_SYN, json.dumps([{**syn, "query": "SELECT 1"}])),
            SPIDER_DEV=(raw.script.rows.SPIDER_DEV, json.dumps([dev])),
        )
        run(raw, tmp_path, "sql")
        asked = "Write one SQL query for the database '{}'.\n{}"
        assert turns(tmp_path / "sql/train.jsonl") == [
            [asked.format("farm", "How many?"), "SELECT 1"]
        ]
        assert turns(tmp_path / "sql/test.jsonl") == [[asked.format("bank", "Who?"), "SELECT 2"]]

    def test_math_hard_leaves_the_test_problems_out_whatever_their_spaces(
        self, raw: Raw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        domains = raw.script.rows
        every = [{"problem": p, "solution": p.upper()} for p in ("a + b", "c\n d", "e")]
        raw.use(
            "math_hard",
            MATH_TEST=(domains.MATH_TEST, dumped(every)),
            MATH_500=(domains.MATH_500, dumped([{"problem": "c d", "solution": "C"}])),
        )
        run(raw, tmp_path, "math_hard")
        assert turns(tmp_path / "math_hard/train.jsonl") == [["a + b", "A + B"], ["e", "E"]]
        assert turns(tmp_path / "math_hard/test.jsonl") == [["c d", "C"]]
        # These are not the rows of the figures, which is said; the files are written all the same.
        assert "without MATH-500: these 2 rows are not those" in capsys.readouterr().err

    def test_code_and_ood(self, raw: Raw, tmp_path: Path) -> None:
        domains = raw.script.rows
        gpt = [{"instruction": "Sort.", "input": "[2]", "response": "x"}]
        gpt.append({"instruction": "Add.", "input": "", "response": "y"})
        human = [{"prompt": "def f():\n", "canonical_solution": "    return 1\n", "task_id": "0"}]
        zipped = gzip.compress(dumped(human).encode())
        raw.use(
            "code",
            CODEGEN=(domains.CODEGEN, json.dumps(gpt)),
            HUMANEVAL=(domains.HUMANEVAL, zipped),
        )
        run(raw, tmp_path, "code")
        assert turns(tmp_path / "code/train.jsonl") == [["Add.", "y"], ["Sort.\n\n[2]", "x"]]
        completed = [["Complete this Python function.\ndef f():\n", "    return 1\n"]]
        assert turns(tmp_path / "code/test.jsonl") == completed

        questions = [{"question_id": i, "turns": [f"a{i}", f"b{i}"]} for i in (1, 2)]
        answers = [{"question_id": 2, "choices": [{"turns": ["first", "second"]}]}]
        raw.use(
            "ood",
            MT_QUESTIONS=(domains.MT_QUESTIONS, dumped(questions)),
            MT_ANSWERS=(domains.MT_ANSWERS, dumped(answers)),
        )
        for name in ("gsm8k", "math500", "aime24"):
            raw.monkeypatch.delitem(domains.OOD, name)
        run(raw, tmp_path, "ood")
        assert turns(tmp_path / "ood/mt_bench.jsonl") == [["a1"], ["a2", "first", "b2", "second"]]
        assert turns(tmp_path / "ood/humaneval.jsonl") == completed

    def test_other_sets_are_two_fields_each(self, raw: Raw, tmp_path: Path) -> None:
        domains = raw.script.rows
        for name, fields in (
            ("gsm8k", ("question", "answer")),
            ("math500", ("problem", "solution")),
            ("aime24", ("problem", "solution")),
        ):
            constant = {"gsm8k": "GSM8K_TEST", "math500": "MATH_500", "aime24": "AIME24"}[name]
            row = {"id": 1, **dict(zip(fields, (f"{name}?", f"{name}!"), strict=True))}
            source = raw.put(getattr(domains, constant), dumped([row]))
            files = raw.script.files.Files(raw.folder, raw.folder, "")
            (made,) = domains.plain(source, *fields)(files)
            assert [m["content"] for m in made["messages"]] == [f"{name}?", f"{name}!"]

    def test_medical(self, raw: Raw, tmp_path: Path) -> None:
        domains = raw.script.rows
        document = """<?xml version="1.0" encoding="UTF-8"?>
<Document id="0000001" source="CDC" url="http://x"><Focus>Cold</Focus>
<QAPairs><QAPair pid="1"><Question qid="1-1" qtype="information">What is cold ?</Question>
<Answer> A &lt;mild&gt; illness.
</Answer></QAPair>
<QAPair pid="2"><Question qid="1-2" qtype="causes">Why ?</Question><Answer></Answer></QAPair>
</QAPairs></Document>"""
        source = raw.put(domains.MEDQUAD[0], document)
        raw.monkeypatch.setattr(domains, "MEDQUAD", (source,))
        (row,) = raw.script.formats.questions_and_answers(source.path, document.encode())
        assert (row["qid"], row["focus"], row["file"]) == ("1-1", "Cold", source.path)
        raw.monkeypatch.setattr(domains, "MEDQUAD_ROWS", digest(dumped([row])))
        article = {"QUESTION": "Does it?", "LONG_ANSWER": "It does.", "MESHES": []}
        silent = {"QUESTION": "And?", "LONG_ANSWER": ""}
        raw.use("medical", PUBMEDQA=(domains.PUBMEDQA, json.dumps({"7": article, "8": silent})))
        run(raw, tmp_path, "medical")
        both = [turns(tmp_path / f"medical/{part}.jsonl") for part in ("train", "test")]
        assert sorted(both[0] + both[1]) == [
            ["Does it?", "It does."],
            ["What is cold ?", "A <mild> illness."],
        ]

    def test_korean(self, raw: Raw, tmp_path: Path) -> None:
        text = '\ufeffQ,A,label\r\n12시 땡!,"하루가, ""또"" 가네요.",0\r\n'
        raw.use("korean", SONGYS=(raw.script.rows.SONGYS, text))
        run(raw, tmp_path, "korean")
        rows = turns(tmp_path / "korean/train.jsonl") + turns(tmp_path / "korean/test.jsonl")
        assert rows == [["12시 땡!", '하루가, "또" 가네요.']]
        assert "땡" in (tmp_path / "korean/train.jsonl").read_text("utf-8") + (
            tmp_path / "korean/test.jsonl"
        ).read_text("utf-8")

    def test_function_calling(self, raw: Raw, tmp_path: Path) -> None:
        domains = raw.script.rows
        asked, answered = domains.BFCL[0]
        question = [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "Rain?"},
        ]
        tools = [{"name": "weather"}]
        truth = [{"weather": {"city": ["Bern", "Berne"], "unit": ["", "C"], "days": []}}]
        rows = [{"id": "a", "question": [question], "function": tools}]
        pair = (
            raw.put(asked, dumped(rows)),
            raw.put(answered, dumped([{"id": "a", "ground_truth": truth}, {"id": "none"}])),
        )
        raw.monkeypatch.setattr(domains, "BFCL", (pair,))
        said = [
            {"from": "human", "value": "Sum 1 2"},
            {"from": "function_call", "value": '{"name": "add"}'},
            {"from": "observation", "value": "3"},
            {"from": "gpt", "value": "It is 3."},
        ]
        glaive = json.dumps([{"conversations": said, "tools": "[]"}])
        raw.use("function_calling", GLAIVE=(domains.GLAIVE, glaive))
        run(raw, tmp_path, "function_calling")
        both = [turns(tmp_path / f"function_calling/{part}.jsonl") for part in ("train", "test")]
        begin = "You may call these functions:\n{}\n\nReply with a JSON list of calls.\n{}"
        assert sorted(both[0] + both[1]) == [
            [begin.format("[]", "Sum 1 2"), '[{"name": "add"}]'],
            [
                begin.format('[{"name": "weather"}]', "Rain?"),
                '[{"name": "weather", "arguments": {"city": "Bern"}}]',
            ],
        ]

    def test_ner(self, raw: Raw, tmp_path: Path) -> None:
        domains = raw.script.rows
        text = "-DOCSTART- O\n\nAda\tB-PER\nLove\tI-PER\nin\tO\nBern\tB-LOC\n\nUlm\tI-LOC\n"
        (source, _), *_ = domains.NER
        put = raw.put(source, text)
        raw.monkeypatch.setattr(domains, "NER", ((put, "train"),))
        raw.monkeypatch.setitem(domains.USED, "ner", (put,))
        run(raw, tmp_path, "ner")
        asked = "List the named entities of these kinds: LOC, PER. Reply with JSON.\n"
        assert turns(tmp_path / "ner/train.jsonl") == [
            [f"{asked}Ada Love in Bern", '{"PER": ["Ada Love"], "LOC": ["Bern"]}'],
            [f"{asked}Ulm", '{"LOC": ["Ulm"]}'],
        ]
        assert turns(tmp_path / "ner/test.jsonl") == []

    def test_general(self, raw: Raw, tmp_path: Path) -> None:
        domains = raw.script.rows
        results = [{"sampling_config": "s", "sampling_params": {}, "outputs": ["one", "", "two"]}]
        report = {"model_name": "m", "prompts": [{"prompt": "Say.", "results": results}]}
        chats = "### Human: Hi ### Assistant: Yes? ### Human: And now? ### Assistant:"
        sources = (raw.put(domains.OASST_REPORTS[0], json.dumps(report)),)
        raw.monkeypatch.setattr(domains, "OASST_REPORTS", sources)
        answers = raw.put(domains.IFEVAL_ANSWERS[0], dumped([{"prompt": "P", "response": "R"}]))
        raw.monkeypatch.setattr(domains, "IFEVAL_ANSWERS", (answers,))
        qlora = dumped([{"input": chats, "prompt": "long", "generation": "Now."}])
        raw.use("general", QLORA=(domains.QLORA, qlora))
        run(raw, tmp_path, "general")
        both = [turns(tmp_path / f"general/{part}.jsonl") for part in ("train", "test")]
        assert sorted(both[0] + both[1]) == [
            ["And now?", "Now."],
            ["P", "R"],
            ["Say.", "one"],
            ["Say.", "two"],
        ]

    @pytest.mark.parametrize(
        ("tags", "found"),
        [
            ("B-A I-A O I-A", {"A": ["a b", "d"]}),
            ("I-A I-B B-B I-A", {"A": ["a", "d"], "B": ["b", "c"]}),
            ("O O O O", {}),
        ],
    )
    def test_entities(self, script: Script, tags: str, found: dict[str, list[str]]) -> None:
        assert script.formats.entities(list("abcd"), tags.split()) == found

    def test_the_hash_of_the_prompt_decides(self, script: Script) -> None:
        parts = [script.rows.split_of(f"prompt {i}") for i in range(2000)]
        assert parts == [script.rows.split_of(f"prompt {i}") for i in range(2000)]
        assert 0.12 < parts.count("test") / 2000 < 0.18

    def test_files_of_medquad(self, script: Script) -> None:
        paths = [source.path for source in script.sources.MEDQUAD]
        assert len(paths) == len(set(paths)) == 608
        assert "1_CancerGov_QA/0000013_3_2.xml" in paths
        assert "9_CDC_QA/0000354.xml" in paths

    def test_every_source_is_listed_with_its_licence(self, raw: Raw, tmp_path: Path) -> None:
        use_math(raw)
        run(raw, tmp_path, "math")
        text = (tmp_path / "SOURCES.md").read_text("utf-8")
        for sources in raw.script.rows.USED.values():
            for source in sources:
                assert f"[{source.repository.name}](https://github.com/" in text
                assert source.repository.license in text
        assert "and 605 more" in text

    def test_a_missing_raw_file_is_named(self, raw: Raw, tmp_path: Path) -> None:
        use_math(raw)
        (raw.folder / raw.script.rows.GSM8K_TEST.place).unlink()
        with pytest.raises(SystemExit, match=r"must hold openai/.*/test\.jsonl"):
            run(raw, tmp_path, "math")


class Server(ThreadingHTTPServer):
    """Serves files, and fails as it is told."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.asked: list[tuple[str, str | None]] = []
        self.cut: dict[str, int] = {}
        self.fail: list[int] = []
        self.ranges = True
        super().__init__(("127.0.0.1", 0), Answers)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path, begun = self.path.lstrip("/"), self.headers.get("Range")
        self.server.asked.append((path.rpartition("/")[2], begun))
        if self.server.fail:
            self.send_error(self.server.fail.pop(0))
            return
        data = self.server.files.get(path)
        if data is None:
            self.send_error(404)
            return
        start = 0
        if begun is not None and self.server.ranges:
            start = int(begun.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        end = self.server.cut.pop(path.rpartition("/")[2], len(data))
        self.wfile.write(data[start:end])

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    use_math(raw)
    with Server(raw.files) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def download(raw: Raw, server: Server, folder: Path) -> None:
    words = ["--cache", str(folder / "cache"), "--base-url", server.url, "--only", "math"]
    raw.script.main([str(folder / "out"), *words])


class TestDownloads:
    def test_each_file_comes_once(self, raw: Raw, server: Server, tmp_path: Path) -> None:
        download(raw, server, tmp_path)
        assert server.asked == [("train.jsonl", None), ("test.jsonl", None)]
        kept = (
            tmp_path
            / "cache/openai/grade-school-math"
            / raw.script.sources.GSM8K_TRAIN.repository.commit
        )
        assert (kept / "grade_school_math/data/train.jsonl").is_file()
        first = (tmp_path / "out/math/train.jsonl").read_bytes()
        download(raw, server, tmp_path)
        assert len(server.asked) == 2
        assert (tmp_path / "out/math/train.jsonl").read_bytes() == first

    def test_a_cut_download_goes_on(self, raw: Raw, server: Server, tmp_path: Path) -> None:
        server.cut["train.jsonl"] = 50
        download(raw, server, tmp_path)
        assert server.asked[:2] == [("train.jsonl", None), ("train.jsonl", "bytes=50-")]
        assert len(turns(tmp_path / "out/math/train.jsonl")) == 4
        assert not list((tmp_path / "cache").rglob("*.part"))

    def test_a_server_without_ranges_sends_all_of_it(
        self, raw: Raw, server: Server, tmp_path: Path
    ) -> None:
        server.cut["train.jsonl"], server.ranges = 50, False
        download(raw, server, tmp_path)
        assert len(turns(tmp_path / "out/math/train.jsonl")) == 4

    def test_faults_that_pass(self, raw: Raw, server: Server, tmp_path: Path) -> None:
        server.fail = [503, 429, 416]
        download(raw, server, tmp_path)
        assert [name for name, _ in server.asked] == ["train.jsonl"] * 4 + ["test.jsonl"]

    def test_faults_that_stay(self, raw: Raw, server: Server, tmp_path: Path) -> None:
        server.fail = [503] * raw.script.files.TRIES
        with pytest.raises(SystemExit, match=r"in 4 tries.*503.*same command again"):
            download(raw, server, tmp_path)
        download(raw, server, tmp_path)

    def test_no_such_file(self, raw: Raw, server: Server, tmp_path: Path) -> None:
        server.files.clear()
        with pytest.raises(SystemExit, match=r"train\.jsonl: 404"):
            download(raw, server, tmp_path)
        assert len(server.asked) == 1

    def test_another_file_than_was_asked_for(
        self, raw: Raw, server: Server, tmp_path: Path
    ) -> None:
        (path,) = (path for path in server.files if path.endswith("train.jsonl"))
        right = server.files[path]
        server.files[path] = right.replace(b"####", b"---#")
        with pytest.raises(SystemExit, match="must have a sha256 that begins with"):
            download(raw, server, tmp_path)
        server.files[path] = right
        download(raw, server, tmp_path)  # the wrong one is gone
        assert len(turns(tmp_path / "out/math/train.jsonl")) == 4
