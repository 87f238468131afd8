"""`TokenCounts`: what is counted, parts, blocks, merging, files, the cache, malformed rows."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from chat_templates import chat, make_tokenizer
from tiny_models import VOCAB_SIZE
from vtrim_hf import chat_data, counts_file
from vtrim_hf.token_counts import TokenCounts
from vtrim_hf.vocabulary import DraftVocabulary, tokenizer_fingerprint

WORDS = re.split(
    " ", "the quick brown fox jumps over lazy dog SELECT name FROM singers WHERE é 🦊"
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTRIM_CACHE", str(tmp_path / "cache"))


def make_rows(number: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))

    return [
        {"messages": chat(*(text() for _ in range(rng.choice([2, 2, 4]))))} for _ in range(number)
    ]


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def count(data: Any, tokenizer: Any, **kwargs: Any) -> TokenCounts:
    kwargs.setdefault("cache_dir", False)
    return TokenCounts.from_dataset(data, tokenizer, progress=False, **kwargs)


def test_counts_are_those_of_a_plain_reading(byte_tokenizer: Any) -> None:
    rows = make_rows(50)
    expected: Counter[int] = Counter()
    for row in rows:
        for message in row["messages"]:
            if message["role"] == "assistant":
                said = message["content"] + "<|im_end|>"
                expected.update(byte_tokenizer.encode(said, add_special_tokens=False))
    counts = count(rows, byte_tokenizer)
    array = counts.array("all")
    assert array.dtype == np.int64
    assert array.shape == (len(byte_tokenizer),)
    assert {i: n for i, n in enumerate(array.tolist()) if n} == expected
    assert counts.total("all") == expected.total()
    assert (counts.array("search") + counts.array("heldout") == array).all()
    assert counts.conversations("all") == 50
    assert counts.shapes == {"default": {"messages": 50}}
    assert counts.tokenizer_hash == tokenizer_fingerprint(byte_tokenizer)


def test_the_width_is_the_targets(byte_tokenizer: Any) -> None:
    rows = make_rows(5)
    assert count(rows, byte_tokenizer, vocab_size=384).array().size == 384
    used = int(np.flatnonzero(count(rows, byte_tokenizer).array("all")).max())
    with pytest.raises(ValueError, match=f"token id {used} lies beyond the width {used}"):
        count(rows, byte_tokenizer, vocab_size=used)


def test_parts_and_blocks_depend_on_the_conversation_alone(byte_tokenizer: Any) -> None:
    rows = make_rows(300)
    whole = count(rows, byte_tokenizer)
    shuffled = rows[:]
    random.Random(1).shuffle(shuffled)
    for data, options in [
        (shuffled, {}),
        (rows, {"batch_size": 1}),
        (rows, {"batch_size": 7}),
        (iter(rows), {"batch_size": 10_000}),
    ]:
        assert count(data, byte_tokenizer, **options).fingerprint == whole.fingerprint
    assert 0.1 < whole.conversations("heldout") / 300 < 0.3
    halves = [count(rows[:150], byte_tokenizer), count(rows[150:], byte_tokenizer)]
    assert TokenCounts.merge(*halves).fingerprint == whole.fingerprint
    assert TokenCounts.merge(*halves).settings["domains"] == whole.settings["domains"]


@pytest.mark.newest
def test_processes_do_not_change_the_counts(byte_tokenizer: Any) -> None:
    rows = [*make_rows(60), {"messages": 3}]
    alone = count(rows, byte_tokenizer, batch_size=8)
    several = count(rows, byte_tokenizer, batch_size=8, num_proc=2)
    assert several.fingerprint == alone.fingerprint
    assert several.skipped == alone.skipped
    assert several.settings == alone.settings


def test_the_same_conversation_is_never_in_both_parts(byte_tokenizer: Any) -> None:
    rows = make_rows(40)
    once, thrice = count(rows, byte_tokenizer), count(rows * 3, byte_tokenizer)
    assert (thrice.array("search") == 3 * once.array("search")).all()
    assert (thrice.array("heldout") == 3 * once.array("heldout")).all()


@pytest.mark.parametrize(("heldout", "share"), [(0.0, 0.0), (0.5, 0.5), (0.9, 0.9)])
def test_the_heldout_share(byte_tokenizer: Any, heldout: float, share: float) -> None:
    counts = count(make_rows(400), byte_tokenizer, heldout=heldout)
    assert counts.conversations("heldout") / 400 == pytest.approx(share, abs=0.08)


@pytest.mark.parametrize("heldout", [-0.1, 1.0, float("nan")])
def test_an_impossible_share_is_refused(byte_tokenizer: Any, heldout: float) -> None:
    with pytest.raises(ValueError, match=r"heldout must be a share in \[0, 1\)"):
        count(make_rows(2), byte_tokenizer, heldout=heldout)


def test_domains_stay_apart(byte_tokenizer: Any, tmp_path: Path) -> None:
    sql, talk = make_rows(20, 1), make_rows(30, 2)
    counts = count({"sql": sql, "talk": write_lines(tmp_path / "t.jsonl", talk)}, byte_tokenizer)
    assert counts.domains == ("sql", "talk")
    for name, rows in (("sql", sql), ("talk", talk)):
        alone = count(rows, byte_tokenizer, domain=name)
        assert (counts.array("search", name) == alone.array("search")).all()
        assert counts.conversations("all", name) == len(rows)
        assert counts.total("heldout", name) == alone.total("heldout")
    assert (counts.array() == counts.array(domain="sql") + counts.array(domain="talk")).all()
    with pytest.raises(ValueError, match=r"domain must be one of sql, talk, got 'x'"):
        counts.array(domain="x")
    with pytest.raises(ValueError, match=r"part must be one of search, heldout, all, got 'test'"):
        counts.array("test")


def test_merging_with_weights() -> None:
    """Several corpora into one choice [lm-vocab-trimmer#2]."""
    a = TokenCounts.from_counts([1, 0, 3, 0], heldout=[0, 1, 0, 0], domain="a")
    b = TokenCounts.from_counts([0, 2, 1, 0], domain="b")
    assert TokenCounts.merge(a, b).array().tolist() == [1, 2, 4, 0]
    mixed = TokenCounts.merge(a, b, weights=[2, 3])
    assert mixed.array().tolist() == [2, 6, 9, 0]
    assert mixed.array("heldout").tolist() == [0, 2, 0, 0]
    assert mixed.array("all").tolist() == [2, 8, 9, 0]
    assert mixed.array(domain="a").tolist() == [1, 0, 3, 0]
    assert mixed.array().dtype == np.int64
    by_name = TokenCounts.merge(a, b, weights={"a": 2, "b": 3})
    assert by_name.fingerprint == mixed.fingerprint
    small = TokenCounts.merge(a, b, weights=[0.1, 1.5])
    assert small.array().tolist() == [1, 3, 2, 0]  # 0.1, 3.0, 1.8: what was seen stays seen
    assert TokenCounts.merge(a, b, weights=[0, 1]).array().tolist() == [0, 2, 1, 0]
    assert TokenCounts.merge(mixed, mixed).array().tolist() == [4, 12, 18, 0]
    assert mixed.coverage([2]) == 9 / 17


def test_a_domain_with_two_weights_is_kept_twice() -> None:
    a = TokenCounts.from_counts([1, 2])
    b = TokenCounts.from_counts([5, 0])
    mixed = TokenCounts.merge(a, b, weights=[1, 3])
    assert mixed.array().tolist() == [16, 2]
    assert mixed.domains == ("default", "default (2)")


@pytest.mark.parametrize(
    ("parts", "weights", "rule"),
    [
        ([], None, "at least one TokenCounts"),
        ([[1, 2], [1, 2, 3]], None, "one vocab_size can be merged, got 2, 3"),
        ([[1, 2], [1, 2]], [1.0], "one weight for each of the 2 counts, got 1"),
        ([[1, 2]], [-1.0], "finite number from 0 on"),
        ([[1, 2]], [float("nan")], "finite number from 0 on"),
        ([[1, 2]], [0.0], "must be positive"),
        ([[1, 2]], {"x": 1.0}, r"name each domain \(default\) once, got x"),
    ],
)
def test_what_cannot_be_merged(parts: Any, weights: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        TokenCounts.merge(*map(TokenCounts.from_counts, parts), weights=weights)


def test_counts_of_two_tokenizers_are_not_merged(byte_tokenizer: Any) -> None:
    other = make_tokenizer("chatml")
    other.add_tokens(["quick"])
    rows = make_rows(5)
    with pytest.raises(ValueError, match="one tokenizer_hash can be merged"):
        TokenCounts.merge(
            count(rows, byte_tokenizer, vocab_size=400), count(rows, other, vocab_size=400)
        )


@pytest.mark.parametrize(
    ("array", "rule"),
    [
        ([[1]], r"shape \[V\]"),
        ([1.5], "whole numbers"),
        ([], "whole numbers"),
        ([1, -2], "got -2 for id 1"),
    ],
)
def test_given_counts_are_checked(array: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        TokenCounts.from_counts(array)


def test_given_counts_are_copied_and_what_comes_out_is_a_copy() -> None:
    given = np.array([3, 4])
    counts = TokenCounts.from_counts(given)
    given[0] = 9
    counts.array()[1] = 9
    assert counts.array().tolist() == [3, 4]


def test_vocabularies_of_several_sizes_read_the_data_once(byte_tokenizer: Any) -> None:
    """Other sizes need no new count and no model [lm-vocab-trimmer#2]."""
    reads = []

    def rows() -> Any:
        reads.append(1)
        yield from make_rows(30)

    counts = count(rows(), byte_tokenizer)
    coverages = []
    for size in (5, 10, 15, 20, 25):
        vocabulary = DraftVocabulary.from_counts(counts, size=size)
        coverages.append(counts.coverage(vocabulary))
    assert coverages == sorted(coverages)
    assert reads == [1]


def test_coverage(byte_tokenizer: Any) -> None:
    counts = count(make_rows(80), byte_tokenizer)
    seen = np.flatnonzero(counts.array("all"))
    assert counts.coverage(range(VOCAB_SIZE)) == 1.0
    assert counts.coverage(seen, "heldout") == 1.0
    half = seen[::2]
    array = counts.array("heldout")
    assert counts.coverage(half.tolist(), "heldout") == array[half].sum() / array.sum()
    vocabulary = DraftVocabulary.from_ids(half, vocab_size=VOCAB_SIZE, tokenizer=byte_tokenizer)
    assert counts.coverage(vocabulary, "heldout") == counts.coverage(half, "heldout")
    assert np.isnan(count(make_rows(5), byte_tokenizer, heldout=0).coverage(half, "heldout"))
    with pytest.raises(ValueError, match="id 300 lies outside the counts' width 300"):
        counts.coverage([300])
    foreign = DraftVocabulary.from_ids([1], vocab_size=VOCAB_SIZE, tokenizer_hash="0" * 64)
    with pytest.raises(ValueError, match="of another tokenizer"):
        counts.coverage(foreign)


def test_the_interval_holds_the_coverage_and_grows_with_the_level(byte_tokenizer: Any) -> None:
    counts = count(make_rows(200), byte_tokenizer)
    ids = np.argsort(-counts.array())[:12]
    for part in ("search", "heldout", "all"):
        low, high = counts.coverage_interval(ids, part)
        assert low < counts.coverage(ids, part) < high
        lower, higher = counts.coverage_interval(ids, part, level=0.999)
        assert lower < low < high < higher
    assert counts.coverage_interval(ids) == counts.coverage_interval(ids)
    assert counts.coverage_interval(ids, seed=1) != counts.coverage_interval(ids)
    few, many = (counts.coverage_interval(ids, part) for part in ("heldout", "all"))
    assert few[1] - few[0] > many[1] - many[0]


def test_the_interval_covers_the_truth_about_as_often_as_it_says(byte_tokenizer: Any) -> None:
    """Conversations, not tokens, are the unit: each repeats one letter."""
    rng = random.Random(3)
    ids = [byte_tokenizer.encode(letter)[0] for letter in "ab"] + [byte_tokenizer.eos_token_id]

    def rows(number: int) -> list[dict[str, Any]]:
        # Every conversation says one letter twenty times; half of the letters are covered.
        return [
            {"messages": chat(str(rng.random()), rng.choice("abcd") * 20)} for _ in range(number)
        ]

    truth = count(rows(3000), byte_tokenizer, heldout=0).coverage(ids)
    inside = 0
    for _ in range(60):
        low, high = count(rows(100), byte_tokenizer, heldout=0).coverage_interval(
            ids, resamples=200
        )
        inside += low <= truth <= high
    assert inside >= 49  # 57 are expected at 95 %; token by token it would be about 20


def test_intervals_at_the_edges(byte_tokenizer: Any) -> None:
    one = count(make_rows(1), byte_tokenizer, heldout=0)
    assert one.coverage_interval([1]) == (0.0, 1.0)
    assert np.isnan(one.coverage_interval([1], "heldout")).all()
    given = TokenCounts.from_counts([900, 100])
    low, high = given.coverage_interval([0])
    assert 0.87 < low < 0.9 < high < 0.93
    with pytest.raises(ValueError, match="level must lie"):
        one.coverage_interval([1], level=1.0)


def test_save_and_load(byte_tokenizer: Any, tmp_path: Path) -> None:
    counts = count({"a": make_rows(30), "b": [*make_rows(9, 4), {"messages": 1}]}, byte_tokenizer)
    counts = TokenCounts.merge(counts, weights={"a": 1, "b": 2.5})
    counts.save(tmp_path / "deep" / "counts.safetensors")
    loaded = TokenCounts.load(tmp_path / "deep" / "counts.safetensors")
    assert loaded.fingerprint == counts.fingerprint
    assert (loaded.array() == counts.array()).all()
    assert loaded.weights == counts.weights
    assert loaded.settings == counts.settings
    assert loaded.skipped == counts.skipped
    assert loaded.coverage_interval([1, 2, 3]) == counts.coverage_interval([1, 2, 3])
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["counts.safetensors"]
    given = TokenCounts.from_counts([1, 2], heldout=[0, 1])
    given.save(tmp_path / "given.safetensors")
    assert TokenCounts.load(tmp_path / "given.safetensors").fingerprint == given.fingerprint


def _parts_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["vtrim_counts"])
        return {key: file.get_tensor(key) for key in list(file.keys())}, header


def _broken(change: str, tensors: dict[str, Any], header: dict[str, Any]) -> None:
    if change == "dtype":
        tensors["0.counts"] = tensors["0.counts"].astype(np.int32)
    elif change == "shape":
        tensors["0.keys"] = tensors["0.keys"].reshape(1, -1)
    elif change == "missing":
        del tensors["0.conversations"]
    elif change == "unknown":
        tensors["extra"] = np.zeros(1)
    elif change == "order":
        tensors["0.keys"] = tensors["0.keys"][::-1].copy()
    elif change == "range":
        tensors["0.keys"][-1] = 1 << 60
    elif change == "negative":
        tensors["0.counts"][0] = -5
    elif change == "changed":
        tensors["0.counts"][0] += 1
    elif change == "blocks":
        tensors["0.conversations"] = tensors["0.conversations"][:-1]
    elif change == "huge":
        header["vocab_size"] = 1 << 60
    elif change == "format":
        header["format"] = 99
    elif change == "weights":
        header["weights"] = {"default": float("1e999")}
    elif change == "hash":
        header["tokenizer_hash"] = "f" * 64
    elif change == "skipped":
        header["skipped"] = [["a"]]
    elif change == "domains":
        header["domains"] = [{"name": "a"}]
    elif change == "twice":
        header["domains"] *= 2


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("dtype", "'0.counts' must be int64"),
        ("shape", "'0.keys' must be int64 with one dimension"),
        ("missing", "'0.conversations' is missing"),
        ("unknown", "'extra' is unknown"),
        ("order", "'0.keys' must be ascending"),
        ("range", "'0.keys' must be ascending"),
        ("negative", "'0.counts' must hold one positive"),
        ("changed", "'fingerprint' is"),
        ("blocks", "'0.conversations' must hold"),
        ("huge", "'vocab_size' must be a whole number"),
        ("format", "format must be 1, got 99"),
        ("weights", "'weights' must hold one number"),
        ("hash", "'fingerprint' is"),
        ("skipped", "'skipped' must hold"),
        ("domains", "'domains' entry 0"),
        ("twice", "'domains' must name each domain once"),
    ],
)
def test_a_changed_file_is_refused_by_name(
    byte_tokenizer: Any, tmp_path: Path, change: str, named: str
) -> None:
    path = tmp_path / "counts.safetensors"
    count(make_rows(5), byte_tokenizer).save(path)
    tensors, header = _parts_of(path)
    _broken(change, tensors, header)
    save_file(tensors, path, {"vtrim_counts": json.dumps(header)})
    with pytest.raises(ValueError, match=named):
        TokenCounts.load(path)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(None, id="none"),
        pytest.param([], id="list"),
        pytest.param({"domains": []}, id="domains a list"),
        pytest.param({"domains": None}, id="domains none"),
        pytest.param({"domains": {"default": 1}}, id="domain a number"),
        pytest.param({"domains": {"default": {"shapes": 3}}}, id="shapes a number"),
        pytest.param({"domains": {"default": {"shapes": {"messages": "x"}}}}, id="shape a text"),
        pytest.param({"domains": {"default": {"rows": 5}}}, id="facts that merging needs"),
        pytest.param({"domains": {"default": {"data_fingerprint": "xyz"}}}, id="no hash"),
    ],
)
def test_changed_settings_are_refused(tmp_path: Path, settings: Any) -> None:
    """They are no part of the fingerprint; `shapes` and merging would meet them much later."""
    path = tmp_path / "counts.safetensors"
    TokenCounts.from_counts([1, 2]).save(path)
    tensors, header = _parts_of(path)
    header["settings"] = settings
    save_file(tensors, path, {"vtrim_counts": json.dumps(header)})
    with pytest.raises(ValueError, match=r"counts\.safetensors: 'settings'"):
        TokenCounts.load(path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 64, b"\x08\0\0\0\0\0\0\0[1,2,3]]"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.safetensors is no safetensors file of counts"):
        TokenCounts.load(tmp_path / "x.safetensors")
    save_file({"weight": np.zeros(2)}, tmp_path / "y.safetensors")
    with pytest.raises(ValueError, match="its metadata lacks 'vtrim_counts'"):
        TokenCounts.load(tmp_path / "y.safetensors")
    with pytest.raises(FileNotFoundError, match="no file of counts"):
        TokenCounts.load(tmp_path / "none.safetensors")


class Reads:
    """Counts how many rows are read from files and data sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        original = chat_data.ChatSource.__iter__

        def counted(source: Any) -> Any:
            for row in original(source):
                self.number += 1
                yield row

        monkeypatch.setattr(chat_data.ChatSource, "__iter__", counted)


@pytest.mark.parametrize("kind", ["file", "dataset"])
def test_the_same_inputs_are_not_counted_twice(
    byte_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The second call reads no row, whatever the first left in the tokenizer [datasets#7982]."""
    import datasets

    reads = Reads(monkeypatch)
    rows = make_rows(12)
    data: Any = (
        write_lines(tmp_path / "a.jsonl", rows)
        if kind == "file"
        else datasets.Dataset.from_list(rows)
    )
    first = count(data, byte_tokenizer, cache_dir=tmp_path / "kept")
    assert reads.number == 12
    byte_tokenizer(["the quick brown fox"], truncation=True, max_length=2, padding="max_length")
    second = count(data, byte_tokenizer, cache_dir=tmp_path / "kept", domain="other", batch_size=3)
    assert reads.number == 12
    assert (second.array() == first.array()).all()
    assert second.domains == ("other",)
    assert second.skipped == first.skipped


def test_the_default_cache(byte_tokenizer: Any, tmp_path: Path, monkeypatch: Any) -> None:
    reads = Reads(monkeypatch)
    path = write_lines(tmp_path / "a.jsonl", make_rows(4))
    for _ in range(2):
        count(path, byte_tokenizer, cache_dir=None)
    assert reads.number == 4
    assert len(list((tmp_path / "cache" / "counts").iterdir())) == 1
    count(path, byte_tokenizer, cache_dir=False)
    assert reads.number == 8


def test_other_inputs_never_reuse_a_file(
    byte_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key holds all that changes the counts [speculators#1081, open-instruct#1518]."""
    from tokenizers import pre_tokenizers

    reads = Reads(monkeypatch)
    rows = make_rows(10)
    path = write_lines(tmp_path / "a.jsonl", rows)
    more_tokens, splits_otherwise, other_template = (make_tokenizer("chatml") for _ in range(3))
    more_tokens.add_tokens(["fox"])
    splits_otherwise.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("o", "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    other_template.chat_template += "\n"
    plain = {"vocab_size": 400}
    runs: list[tuple[Any, Any, dict[str, Any]]] = [
        (path, byte_tokenizer, plain),
        (path, more_tokens, plain),
        (path, splits_otherwise, plain),
        (path, other_template, plain),
        (path, byte_tokenizer, {"vocab_size": 401}),
        (path, byte_tokenizer, {**plain, "heldout": 0.3}),
        (path, byte_tokenizer, {**plain, "blocks": 100}),
        (path, byte_tokenizer, {**plain, "template_kwargs": {"x": 1}}),
        (path, byte_tokenizer, {**plain, "strict": True}),
        (write_lines(tmp_path / "b.jsonl", rows[:-1]), byte_tokenizer, plain),
    ]
    prints = set()
    for number, (data, tokenizer, options) in enumerate(runs, 1):
        prints.add(count(data, tokenizer, cache_dir=tmp_path / "kept", **options).fingerprint)
        assert len(list((tmp_path / "kept").iterdir())) == number
    assert reads.number == 99
    write_lines(path, make_rows(10, seed=9))  # the same name, other content
    count(path, byte_tokenizer, cache_dir=tmp_path / "kept", **plain)
    assert reads.number == 109
    different = [count(path, t, **plain) for t in (byte_tokenizer, more_tokens, splits_otherwise)]
    assert len({c.array("all").tobytes() for c in different}) == 3


def test_streams_are_counted_anew(byte_tokenizer: Any, tmp_path: Path) -> None:
    import datasets

    stream = datasets.Dataset.from_list(make_rows(6)).to_iterable_dataset()
    first = count(stream, byte_tokenizer, cache_dir=tmp_path / "kept")
    assert first.fingerprint == count(make_rows(6), byte_tokenizer).fingerprint
    assert not (tmp_path / "kept").exists()


def test_a_broken_cache_file_is_counted_again(
    byte_tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_lines(tmp_path / "a.jsonl", make_rows(5))
    first = count(path, byte_tokenizer, cache_dir=tmp_path / "kept")
    (kept,) = (tmp_path / "kept").iterdir()
    kept.write_bytes(kept.read_bytes()[:-9])
    assert (
        count(path, byte_tokenizer, cache_dir=tmp_path / "kept").fingerprint == first.fingerprint
    )
    assert "counting again" in caplog.text
    assert TokenCounts.load(kept).fingerprint == first.fingerprint


def test_nothing_is_left_of_a_save_that_fails(
    byte_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = count(make_rows(5), byte_tokenizer)
    counts.save(tmp_path / "c.safetensors")
    before = (tmp_path / "c.safetensors").read_bytes()

    def fails(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        counts.save(tmp_path / "c.safetensors")
    assert (tmp_path / "c.safetensors").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


BAD_LINES = [
    ('{"messages": [', "not JSON"),
    ("[1, 2]", "named columns"),
    ('{"messages": [{"role": "user", "content": 7}]}', "got int"),
    ('{"messages": [{"content": "x"}]}', "names no speaker"),
    ('{"other": 1}', "fit no shape"),
    ('{"messages": [{"role": "assistant", "content": "\\ud800"}]}', "Unicode"),
]


def test_malformed_rows_are_skipped_counted_and_shown(byte_tokenizer: Any, tmp_path: Path) -> None:
    good = [json.dumps(row) for row in make_rows(6)]
    lines = [
        line for pair in zip(good, [bad for bad, _ in BAD_LINES], strict=True) for line in pair
    ]
    path = tmp_path / "mixed.jsonl"
    path.write_text("\n".join(lines), "utf-8")
    counts = count(path, byte_tokenizer)
    assert counts.fingerprint == count(make_rows(6), byte_tokenizer).fingerprint
    assert len(counts.skipped) == counts.skipped.number == 6
    for number, (row, (_, reason)) in enumerate(zip(counts.skipped, BAD_LINES, strict=True)):
        assert (row.source, row.line) == ("mixed.jsonl", 2 * number + 2)
        assert reason in row.reason
    assert "mixed.jsonl:2: not JSON" in str(counts.skipped)
    with pytest.raises(ValueError, match=r"mixed\.jsonl:2: not JSON"):
        count(path, byte_tokenizer, strict=True)


def test_a_template_that_raises_skips_the_row() -> None:
    tokenizer = make_tokenizer("mistral")
    rows = [*make_rows(3), {"messages": chat("a", "b", system="Be brief.")}]
    counts = count(rows, tokenizer)
    assert counts.conversations("all") == 3
    assert "no system role" in counts.skipped[0].reason
    assert counts.skipped[0].line == 4


def test_only_the_first_twenty_are_kept(byte_tokenizer: Any) -> None:
    counts = count([*([{"messages": 1}] * 50), *make_rows(1)], byte_tokenizer, batch_size=8)
    assert len(counts.skipped) == 50
    assert [row.line for row in counts.skipped] == list(range(1, 21))


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ([{"question": "a", "answer": "b"}], "answer, question"),
        ([{"messages": chat("a"), "id": 1}], "id, messages"),
        ([], r"\(none\)"),
    ],
)
def test_data_without_an_assistant_turn_lists_its_columns(
    byte_tokenizer: Any, rows: Any, columns: str
) -> None:
    with pytest.raises(ValueError, match=f"no assistant turn.*columns found: {columns}"):
        count(rows, byte_tokenizer)


def test_reading_stops_early_where_no_row_has_a_known_shape(byte_tokenizer: Any) -> None:
    def endless() -> Any:
        while True:
            yield {"question": "a"}

    with pytest.raises(ValueError, match="columns found: question"):
        count(endless(), byte_tokenizer)


def test_a_chat_and_a_tokenizer_without_a_template(byte_tokenizer: Any) -> None:
    byte_tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        count(make_rows(2), byte_tokenizer)
    rows = [{"instruction": "a", "output": "the fox"}, {"prompt": "x", "completion": " the dog"}]
    said = byte_tokenizer.encode("the fox<|im_end|> the dog<|im_end|>", add_special_tokens=False)
    counts = count(rows, byte_tokenizer)
    assert counts.array("all").tolist() == np.bincount(said, minlength=VOCAB_SIZE).tolist()
    assert counts.template_hash is None


def test_a_text_column_counts_as_it_stands(byte_tokenizer: Any) -> None:
    counts = count([{"body": "the fox"}, {"body": 3}], byte_tokenizer, text_column="body")
    said = byte_tokenizer.encode("the fox", add_special_tokens=False)
    assert counts.array("all").tolist() == np.bincount(said, minlength=VOCAB_SIZE).tolist()
    assert counts.shapes == {"default": {"text": 1}}
    assert len(counts.skipped) == 1


def test_the_targets_own_ids_count_as_they_stand(byte_tokenizer: Any) -> None:
    rows: list[dict[str, Any]] = [
        {"vtrim_record": "answers", "tokenizer_hash": tokenizer_fingerprint(byte_tokenizer)},
        {"messages": chat("a", "b"), "assistant_token_ids": [9, 9, 2]},
        {"vtrim_record": "finished"},
    ]
    counts = count(rows, byte_tokenizer)
    assert {i: n for i, n in enumerate(counts.array("all").tolist()) if n} == {9: 2, 2: 1}
    assert counts.settings["domains"]["default"]["rows"] == 1
    rows[0]["tokenizer_hash"] = "0" * 64
    with pytest.raises(ValueError, match="rows:1: the answers were given with another tokenizer"):
        count(rows, byte_tokenizer)


def test_an_id_that_no_tokenizer_has_skips_its_row_alone(byte_tokenizer: Any) -> None:
    rows = [{"assistant_token_ids": [5, 10**30]}, {"assistant_token_ids": [9, 2]}]
    counts = count(rows, byte_tokenizer)
    assert np.flatnonzero(counts.array("all")).tolist() == [2, 9]
    assert [row.line for row in counts.skipped] == [1]


def test_mixed_shapes_are_shown(byte_tokenizer: Any) -> None:
    rows = [*make_rows(2), {"instruction": "a", "output": "b"}, {"messages": chat("only a user")}]
    counts = count(rows, byte_tokenizer)
    assert counts.shapes == {"default": {"instruction/output": 1, "messages": 2}}
    assert counts.settings["domains"]["default"]["without_assistant"] == 1


@pytest.mark.parametrize("vocab_size", [8, 1 << 31])
def test_batches_add_up(monkeypatch: pytest.MonkeyPatch, vocab_size: int) -> None:
    """Merging adds to known keys in place; narrow and wide keys, few and many at a time."""
    from vtrim_hf import counted_blocks

    monkeypatch.setattr(counted_blocks, "_PENDING_KEYS", 37)
    rng = np.random.default_rng(0)
    accumulator = counted_blocks.BlockAccumulator(vocab_size, 2)
    expected: Counter[int] = Counter()
    for _ in range(50):
        drawn = rng.integers(0, 32, 20) * (vocab_size // 8)
        keys, counts = np.unique(drawn, return_counts=True)
        accumulator.add(keys, counts, np.ones(4, dtype=np.int64))
        expected.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))
    done = accumulator.finished()
    assert dict(zip(done.keys.tolist(), done.counts.tolist(), strict=True)) == expected
    assert done.keys.tolist() == sorted(expected)
    assert done.keys.dtype == (np.uint32 if vocab_size == 8 else np.int64)
    assert done.conversations.tolist() == [50] * 4


def test_tokenizer_facts_change_with_what_splits_the_text() -> None:
    from tokenizers import normalizers

    first, second = make_tokenizer("chatml"), make_tokenizer("chatml")
    assert counts_file.tokenizer_facts(first) == counts_file.tokenizer_facts(second)
    second.backend_tokenizer.normalizer = normalizers.Lowercase()
    table, behaviour = counts_file.tokenizer_facts(second)
    assert table == counts_file.tokenizer_facts(first)[0]
    assert behaviour != counts_file.tokenizer_facts(first)[1]


@pytest.mark.parametrize("options", [{"blocks": 0}, {"batch_size": 0}, {"num_proc": 0}])
def test_impossible_settings(byte_tokenizer: Any, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="blocks must lie"):
        count(make_rows(1), byte_tokenizer, **options)


def test_an_empty_mapping_is_refused(byte_tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="the mapping is empty"):
        count({}, byte_tokenizer)
