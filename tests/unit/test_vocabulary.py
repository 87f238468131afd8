from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from vtrim_hf.vocabulary import (
    DraftVocabulary,
    rank_ids,
    rows_of,
    tokenizer_fingerprint,
    write_atomically,
)

REPOSITORY = Path(__file__).parents[2]


def tokenizer_of(*tokens: str) -> SimpleNamespace:
    return SimpleNamespace(get_vocab=lambda: {token: i for i, token in enumerate(tokens)})


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        pytest.param([-1, 3], "position 0 id -1 lies outside", id="negative"),
        pytest.param([3, 5, 10], "position 2 id 10 lies outside", id="at the width"),
        pytest.param([3, 5, 5, 7], "position 2 id 5 repeats id 5", id="duplicate"),
        pytest.param([3, 7, 5], "position 2 id 5 comes after the larger id 7", id="unsorted"),
        pytest.param([], "empty", id="empty"),
    ],
)
def test_a_bad_table_is_refused_with_its_first_bad_position(ids, named):
    with pytest.raises(ValueError, match=named):
        DraftVocabulary(torch.tensor(ids, dtype=torch.int64), 10)


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(torch.tensor([1, 2], dtype=torch.int32), id="int32"),
        pytest.param(torch.tensor([1.0, 2.0]), id="float"),
        pytest.param(torch.tensor([[1, 2]]), id="two dimensions"),
        pytest.param(torch.tensor(1), id="scalar"),
    ],
)
def test_only_a_flat_int64_tensor_is_a_table(ids):
    with pytest.raises(ValueError, match="int64 tensor of shape"):
        DraftVocabulary(ids, 10)


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        pytest.param([], "empty", id="empty"),
        pytest.param([4, 2, 4], "id 4 repeats", id="duplicate"),
        pytest.param([2, -4], "id -4 lies outside", id="negative"),
        pytest.param([2, 10], "id 10 lies outside", id="at the width"),
        pytest.param([1.5, 2.5], "whole numbers", id="fractions are not rounded"),
        pytest.param(np.array([1.0, 2.0]), "whole numbers", id="float array"),
        pytest.param(torch.tensor([True, False, True]), "nonzero", id="a mask is no list of ids"),
        pytest.param(torch.tensor([[1, 2]]), "flat list", id="two dimensions"),
    ],
)
def test_from_ids_refuses(ids, named):
    with pytest.raises(ValueError, match=named):
        DraftVocabulary.from_ids(ids, vocab_size=10)


@pytest.mark.parametrize(
    "ranks",
    [[0, 0], [0, 2], [1.0, 0.0], [[0, 1]], [0]],
    ids=["twice", "gap", "float", "2d", "few"],
)
def test_ranks_must_be_a_permutation(ranks):
    with pytest.raises(ValueError, match=r"each of 0\.\.1 once"):
        DraftVocabulary(torch.tensor([3, 5]), 10, ranks=torch.tensor(ranks))


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, np.int64(3), Path()])
def test_provenance_must_be_json(value):
    with pytest.raises(ValueError, match="plain JSON"):
        DraftVocabulary.from_ids([1], vocab_size=10, provenance={"value": value})


def test_nothing_outside_changes_a_vocabulary():
    ids, facts = torch.tensor([2, 5, 7]), {"domain": ["sql"]}
    vocabulary = DraftVocabulary(ids, 10, provenance=facts)
    before = vocabulary.fingerprint
    ids[0] = 3
    facts["domain"].append("code")
    assert vocabulary.ids.tolist() == [2, 5, 7]
    assert vocabulary.fingerprint == before
    assert vocabulary.provenance == {"domain": ["sql"]}
    with pytest.raises(AttributeError):
        vocabulary.vocab_size = 12  # type: ignore[misc]


def test_the_fingerprint_tells_ids_width_and_tokenizer_apart():
    def make(ids=(1, 4), width=10, **kwargs):
        return DraftVocabulary.from_ids(list(ids), vocab_size=width, **kwargs)

    one, other = tokenizer_of("a", "b", "c"), tokenizer_of("a", "c", "b")
    different = [
        make(),
        make(ids=(1, 5)),
        make(ids=(1, 4, 5)),
        make(width=11),
        make(tokenizer=one),
        make(tokenizer=other),
    ]
    assert len({vocabulary.fingerprint for vocabulary in different}) == len(different)
    # Where it came from and the order of need change no row's meaning.
    assert make() == make(ids=(4, 1), provenance={"domain": "sql"})
    assert hash(make()) == hash(make(ids=(4, 1)))
    assert make() != make(ids=(1, 5))


def test_tokenizers_of_one_size_have_other_fingerprints_when_permuted(byte_tokenizer):
    table = byte_tokenizer.get_vocab()
    swapped = {**table, "a": table["b"], "b": table["a"]}
    permuted = SimpleNamespace(get_vocab=lambda: swapped)
    assert tokenizer_fingerprint(byte_tokenizer) != tokenizer_fingerprint(permuted)
    before = tokenizer_fingerprint(byte_tokenizer)
    byte_tokenizer.add_tokens(["<new>"])
    assert tokenizer_fingerprint(byte_tokenizer) != before, "added tokens count"


def test_a_gap_in_the_ids_counts():
    dense, gap = ({"a": 0, "b": 1}, {"a": 0, "b": 2})
    prints = {
        tokenizer_fingerprint(SimpleNamespace(get_vocab=lambda t=t: t)) for t in (dense, gap)
    }
    assert len(prints) == 2


def test_a_token_with_a_line_break_does_not_pass_for_two():
    two = SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 1})
    one = SimpleNamespace(get_vocab=lambda: {"a\n1\tb": 0})
    assert tokenizer_fingerprint(one) != tokenizer_fingerprint(two)


def test_a_tokenizer_that_is_not_the_counted_one_is_refused():
    one, other = tokenizer_of("a", "b"), tokenizer_of("b", "a")
    with pytest.raises(ValueError, match="count with the tokenizer that the target uses"):
        DraftVocabulary.from_ids(
            [0], vocab_size=2, tokenizer=one, tokenizer_hash=tokenizer_fingerprint(other)
        )


@settings(max_examples=60, deadline=None, database=None)
@given(st.data())
def test_the_two_maps_are_inverse(data):
    width = data.draw(st.integers(1, 60))
    ids = data.draw(st.sets(st.integers(0, width - 1), min_size=1))
    vocabulary = DraftVocabulary.from_ids(list(ids), vocab_size=width)
    every = torch.arange(width)
    rows = vocabulary.to_draft(every)
    assert rows.tolist() == [sorted(ids).index(i) if i in ids else -1 for i in range(width)]
    assert torch.equal(vocabulary.to_target(rows[rows >= 0]), vocabulary.ids)
    assert torch.equal(
        vocabulary.to_draft(vocabulary.to_target(torch.arange(len(ids)))), torch.arange(len(ids))
    )
    assert [i for i in range(width) if i in vocabulary] == sorted(ids)
    assert vocabulary.is_full == (len(ids) == width)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_maps_take_any_integers_of_any_shape(dtype):
    vocabulary = DraftVocabulary.from_ids([3, 7, 8], vocab_size=10)
    ids = torch.tensor([[3, 4], [8, 7]], dtype=dtype)
    assert vocabulary.to_draft(ids).tolist() == [[0, -1], [2, 1]]
    assert vocabulary.to_target(torch.tensor([[1], [0]], dtype=dtype)).tolist() == [[7], [3]]


def test_ids_outside_the_width_have_no_row():
    vocabulary = DraftVocabulary.from_ids([0, 3, 9], vocab_size=10)
    assert vocabulary.to_draft(torch.tensor([-100, -1, 10, 10**9])).tolist() == [-1] * 4
    assert rows_of(torch.empty(0, 3, dtype=torch.int64), vocabulary.ids).shape == (0, 3)


@pytest.mark.parametrize("row", [-1, 3])
def test_to_target_refuses_a_row_that_the_head_does_not_have(row):
    vocabulary = DraftVocabulary.from_ids([0, 3, 9], vocab_size=10)
    with pytest.raises(ValueError, match=r"rows of this head lie in \[0, 3\)"):
        vocabulary.to_target(torch.tensor([0, row]))


def test_ranking_takes_required_ids_first_then_counts_then_ids():
    counts = np.array([5, 0, 7, 7, 0, 1])
    assert rank_ids(counts).tolist() == [2, 3, 0, 5]
    assert rank_ids(counts, required=[5, 4]).tolist() == [4, 5, 2, 3, 0]
    assert rank_ids(counts.astype(np.uint64)).tolist() == [2, 3, 0, 5]


@pytest.mark.parametrize(
    ("counts", "required", "named"),
    [
        pytest.param(np.ones((2, 3), dtype=int), (), r"shape \[V\]", id="two dimensions"),
        pytest.param(np.array([1.5, 2.0]), (), "whole numbers", id="fractions"),
        pytest.param(
            np.array([1, -2]), (), "must not be negative, got -2 for id 1", id="negative"
        ),
        pytest.param(np.array([1, 2]), (2,), r"\[0, 2\), got 2", id="required beyond the width"),
        pytest.param(np.array([1, 2]), (-1,), "got -1", id="required negative"),
        pytest.param(np.array([1, 2]), (0.5,), "whole numbers", id="required fraction"),
        pytest.param(np.array([1, 2]), (1j,), "whole numbers", id="required complex"),
        pytest.param(np.array([1, 2]), ("1",), "whole numbers", id="required text"),
        pytest.param(np.array([1, 2]), (10**30,), "whole numbers", id="required huge"),
    ],
)
def test_ranking_refuses(counts, required, named):
    with pytest.raises(ValueError, match=named):
        rank_ids(counts, required)


def test_from_counts_breaks_ties_by_id_and_keeps_what_is_required():
    counts = np.array([4, 4, 9, 4, 0, 1])
    vocabulary = DraftVocabulary.from_counts(counts, 3, required=(4,))
    assert vocabulary.ids.tolist() == [0, 2, 4], "the required 4, then the 9, then the first 4"
    assert vocabulary.vocab_size == 6
    assert DraftVocabulary.from_counts(counts, 3, required=iter([4, 4])) == vocabulary
    assert DraftVocabulary.from_counts(counts, 3, vocab_size=8).vocab_size == 8
    assert DraftVocabulary.from_counts(counts, 1, required=[4, 4]).ids.tolist() == [4]


@pytest.mark.parametrize("required", [(0, 5), iter((0, 5))], ids=["tuple", "iterator"])
def test_from_counts_refuses_a_size_that_drops_a_required_id(required):
    with pytest.raises(ValueError, match=r"from 2 \(the required ids\) to 3 ids .* size=1"):
        DraftVocabulary.from_counts(np.array([1, 0, 2, 0, 0, 0]), 1, required=required)


def test_from_counts_refuses_a_size_without_evidence():
    """pangoleen/qwen3.8-flash-next-dgx-spark#1: never larger than what ever occurs."""
    with pytest.raises(ValueError, match="to 2 ids"):
        DraftVocabulary.from_counts(np.array([3, 0, 1]), 3)


def test_from_counts_carries_the_tokenizer_of_the_counts():
    counts = SimpleNamespace(array=lambda: np.array([3, 0, 1]), tokenizer_hash="abc")
    assert DraftVocabulary.from_counts(counts, 2).tokenizer_hash == "abc"


def test_cut_keeps_the_most_needed_and_says_of_what():
    vocabulary = DraftVocabulary.from_ids(
        [7, 2, 9, 5], vocab_size=10, tokenizer_hash="abc", provenance={"domain": "sql"}
    )
    cut = vocabulary.cut(2)
    assert cut.ids.tolist() == [2, 7]
    assert cut.cut(1).ids.tolist() == [7], "the order of need survives a cut"
    assert (cut.vocab_size, cut.tokenizer_hash) == (10, "abc")
    assert cut.provenance["domain"] == "sql"
    assert cut.provenance["cut_from"] == {"size": 4, "fingerprint": vocabulary.fingerprint}
    assert vocabulary.cut(4) == vocabulary


@pytest.mark.parametrize("size", [0, 5, -1])
def test_cut_refuses_a_size(size):
    with pytest.raises(ValueError, match=r"\[1, 4\]"):
        DraftVocabulary.from_ids([7, 2, 9, 5], vocab_size=10).cut(size)


def test_cut_needs_a_ranking():
    with pytest.raises(ValueError, match="no ranking"):
        DraftVocabulary.from_ids([2, 5, 7], vocab_size=10).cut(2)


@pytest.fixture
def saved(tmp_path) -> tuple[DraftVocabulary, Path]:
    vocabulary = DraftVocabulary.from_ids(
        [7, 2, 9, 5], vocab_size=10, tokenizer_hash="abc", provenance={"domains": ["sql"]}
    )
    vocabulary.save(tmp_path / "made" / "on the way")
    return vocabulary, tmp_path / "made" / "on the way"


def test_what_is_saved_comes_back(saved):
    vocabulary, folder = saved
    loaded = DraftVocabulary.load(folder)
    assert loaded == vocabulary
    assert torch.equal(loaded.ids, vocabulary.ids)
    assert loaded.provenance == {"domains": ["sql"]}
    assert loaded.cut(2).ids.tolist() == [2, 7]
    assert len(list(folder.iterdir())) == 2


def test_a_second_save_replaces_the_first_and_leaves_nothing_behind(saved):
    _, folder = saved
    (folder / "vocabulary-of-mine.safetensors").write_bytes(b"someone's")
    other = DraftVocabulary.from_ids([1, 2, 3], vocab_size=10)
    other.save(folder)
    assert DraftVocabulary.load(folder) == other
    assert (folder / "vocabulary-of-mine.safetensors").exists()
    assert len(list(folder.iterdir())) == 3


def tensors_of(folder: Path) -> Path:
    return next(folder.glob("vocabulary-*.safetensors"))


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        pytest.param("vocab_size", 11, "fingerprint", id="width"),
        pytest.param("vocab_size", 5, "outside", id="width below an id"),
        pytest.param("vocab_size", 10**30, "vocab_size must be at most", id="huge width"),
        pytest.param("vocab_size", True, "vocab_size is True", id="width as truth"),
        pytest.param("size", 3, "holds 4 ids, but its JSON says size=3", id="size"),
        pytest.param("size", None, "size is None", id="no size"),
        pytest.param("vocab_size", "10", "vocab_size is '10'", id="width as text"),
        pytest.param("tokenizer_hash", "abd", "fingerprint", id="tokenizer"),
        pytest.param("tokenizer_hash", 3, "tokenizer_hash is 3", id="tokenizer as number"),
        pytest.param("fingerprint", "0" * 64, "fingerprint", id="fingerprint"),
        pytest.param("fingerprint", None, "fingerprint is None", id="no fingerprint"),
        pytest.param("provenance", [1], r"provenance is \[1\]", id="provenance as list"),
        pytest.param("tensors_sha256", ..., "tensors_sha256 is missing", id="a fact is gone"),
    ],
)
def test_a_changed_json_is_refused(saved, name, value, named):
    _, folder = saved
    facts = json.loads((folder / "vocabulary.json").read_text())
    if value is ...:
        del facts[name]
    else:
        facts[name] = value
    (folder / "vocabulary.json").write_text(json.dumps(facts))
    with pytest.raises(ValueError, match=named):
        DraftVocabulary.load(folder)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1, 2]",
        "null",
        '"text"',
        "\x00",
        pytest.param(DEEP, id="deep"),
        pytest.param("9" * 5000, id="9"),
    ],
)
def test_a_broken_json_is_refused(saved, text):
    _, folder = saved
    (folder / "vocabulary.json").write_text(text)
    with pytest.raises(ValueError, match=r"vocabulary\.json"):
        DraftVocabulary.load(folder)


@pytest.mark.parametrize("name", ["ids", "ranks"])
def test_changed_tensors_are_refused(saved, name):
    _, folder = saved
    tensors = load_file(tensors_of(folder))
    tensors[name] = tensors[name].flip(0) if name == "ranks" else torch.tensor([1, 2, 3, 4])
    save_file(tensors, tensors_of(folder))
    with pytest.raises(ValueError, match="changed or cut short"):
        DraftVocabulary.load(folder)


def pretend_untouched(folder: Path, data: bytes) -> None:
    """Put other tensors into a folder and make the JSON name them, as an attacker would."""
    facts = json.loads((folder / "vocabulary.json").read_text())
    tensors_of(folder).unlink()
    facts["tensors_sha256"] = hashlib.sha256(data).hexdigest()
    (folder / f"vocabulary-{facts['tensors_sha256'][:12]}.safetensors").write_bytes(data)
    (folder / "vocabulary.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        pytest.param({"ids": torch.tensor([1, 2, 3, 4])}, "fingerprint", id="other ids"),
        pytest.param({"ids": torch.tensor([7, 2])}, "position 1", id="unsorted"),
        pytest.param({"ids": torch.tensor([2, 10])}, "outside", id="out of range"),
        pytest.param({"ids": torch.tensor([2.0, 5.0])}, "int64", id="floats"),
        pytest.param({"ids": torch.empty(0, dtype=torch.int64)}, "empty", id="empty"),
        pytest.param({"rows": torch.tensor([2])}, "ids", id="no ids"),
        pytest.param(
            {"ids": torch.tensor([2, 5, 7, 9]), "ranks": torch.tensor([0, 0, 0, 0])},
            "ranks",
            id="bad ranks",
        ),
    ],
)
def test_hostile_tensors_are_refused(saved, tensors, named):
    from safetensors.torch import save

    _, folder = saved
    pretend_untouched(folder, save(tensors))
    with pytest.raises(ValueError, match=named):
        DraftVocabulary.load(folder)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff" * 64, (10**15).to_bytes(8, "little") + b"{}", b"\x02" + b"\0" * 7 + b"[]"],
)
def test_a_file_that_is_no_safetensors_is_refused(saved, data):
    _, folder = saved
    pretend_untouched(folder, data)
    with pytest.raises(ValueError, match=r"no safetensors file|no valid vocabulary"):
        DraftVocabulary.load(folder)


@pytest.mark.parametrize("which", ["vocabulary.json", "tensors", "folder"])
def test_a_missing_file_is_named(saved, which):
    _, folder = saved
    if which == "folder":
        folder = folder / "elsewhere"
    else:
        (tensors_of(folder) if which == "tensors" else folder / which).unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no vocabulary: vocabulary.* is missing"):
        DraftVocabulary.load(folder)


_KILLED_SAVE = """
import os, pathlib, signal, sys
from vtrim_hf.vocabulary import DraftVocabulary
folder, at = pathlib.Path(sys.argv[1]), int(sys.argv[2])
calls = 0
plain = pathlib.Path.replace
def replace(self, target):
    global calls
    calls += 1
    if calls == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, target)
pathlib.Path.replace = replace
DraftVocabulary.from_ids([1, 3], vocab_size=10).save(folder)
"""


@pytest.mark.newest
@pytest.mark.parametrize("step", [1, 2], ids=["before the tensors", "before the json"])
def test_a_save_that_is_killed_leaves_the_old_vocabulary(saved, step):
    vocabulary, folder = saved
    done = subprocess.run(
        [sys.executable, "-c", _KILLED_SAVE, str(folder), str(step)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=False,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert DraftVocabulary.load(folder) == vocabulary


def test_a_full_disk_leaves_the_old_vocabulary(saved, monkeypatch):
    vocabulary, folder = saved
    plain, calls = os.fdopen, []

    def fail_the_second_time(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return plain(*args, **kwargs)

    monkeypatch.setattr(os, "fdopen", fail_the_second_time)
    with pytest.raises(OSError, match="No space"):
        DraftVocabulary.from_ids([1, 3], vocab_size=10).save(folder)
    assert DraftVocabulary.load(folder) == vocabulary
    assert not [path for path in folder.iterdir() if path.name.startswith(".")], "no scratch files"


def test_write_atomically_leaves_the_old_file_when_it_fails(tmp_path):
    place = tmp_path / "file"
    write_atomically(place, b"old")
    with pytest.raises(TypeError):
        write_atomically(place, "no bytes")  # type: ignore[arg-type]
    assert place.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [place]
    write_atomically(place, b"new")
    assert place.read_bytes() == b"new"


@pytest.mark.parametrize("value", [2.7, 8.0, "8", True, None])
def test_sizes_are_never_rounded(value):
    with pytest.raises(ValueError, match="vocab_size must be a whole number, got"):
        DraftVocabulary.from_ids([0, 1], vocab_size=value)
    with pytest.raises(ValueError, match="size must be a whole number, got"):
        DraftVocabulary.from_counts(np.array([3, 2, 1]), value)
    with pytest.raises(ValueError, match="size must be a whole number, got"):
        DraftVocabulary.from_ids([2, 1], vocab_size=3).cut(value)


def test_sizes_may_be_numbers_of_numpy_and_torch():
    vocabulary = DraftVocabulary.from_ids([0, 1], vocab_size=np.int64(4))  # type: ignore[arg-type]
    assert type(vocabulary.vocab_size) is int
    assert DraftVocabulary.from_counts(np.array([3, 2, 1]), torch.tensor(2)).ids.tolist() == [0, 1]  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_ids_and_rows_are_never_rounded(dtype):
    vocabulary = DraftVocabulary.from_ids([0, 1], vocab_size=3)
    values = torch.tensor([1, 0]).to(dtype)
    with pytest.raises(ValueError, match="token ids must be whole numbers, got torch"):
        vocabulary.to_draft(values)
    with pytest.raises(ValueError, match="rows of a head must be whole numbers, got torch"):
        vocabulary.to_target(values)
    assert vocabulary.to_draft(torch.tensor([])).shape == (0,)


def test_required_ids_of_from_counts_are_never_rounded():
    with pytest.raises(ValueError, match="required ids must be a flat list of whole numbers"):
        DraftVocabulary.from_counts(np.array([3, 2, 1]), 2, required=[1.5])  # type: ignore[list-item]
    with_tensor = DraftVocabulary.from_counts(
        np.array([3, 2, 1]), 2, required=torch.tensor([2, 2])
    )
    assert with_tensor.ids.tolist() == [0, 2]
