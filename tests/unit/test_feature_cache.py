from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drafting import make_eagle
from tiny_models import make_prompt, make_tiny
from vtrim_hf import feature_cache, feature_shards, vocabulary_files
from vtrim_hf.feature_cache import (
    CachedSequences,
    FeatureCache,
    OnlineFeatures,
    features_folder,
)
from vtrim_hf.feature_shards import INDEX_JSON
from vtrim_hf.model_hash import model_hash
from vtrim_hf.training_batches import collate, given_features
from vtrim_hf.training_data import TrainingSequences
from vtrim_hf.training_features import TargetReader


@pytest.fixture
def target() -> Any:
    return make_tiny("llama", num_hidden_layers=4)


@pytest.fixture
def data() -> TrainingSequences:
    ids = make_prompt(30, batch=12)
    lengths = np.random.default_rng(0).integers(8, 31, 12)
    return TrainingSequences.from_pairs(
        (row[:n].numpy(), np.arange(n) >= n - 5) for row, n in zip(ids, lengths, strict=True)
    )


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "_SHARD_BYTES", 48 * 4 * 4 * 60)


def cache_of(
    target: Any,
    data: TrainingSequences,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    layers: tuple[int, int, int] = (1, 2, 4),
    fingerprint: str = "tiny",
) -> FeatureCache:
    return FeatureCache(folder, data, TargetReader(target, layers, dtype), fingerprint)


@pytest.mark.usefixtures("small_shards")
def test_cached_features_are_the_online_ones(
    target: Any, data: TrainingSequences, tmp_path: Path
) -> None:
    cache = cache_of(target, data, tmp_path)
    assert cache.fill(tokens_at_once=64, progress=False) > 2
    assert cache.fill(progress=False) == 0
    with_features = CachedSequences(data, cache)
    batch = collate([with_features[at] for at in range(12)])
    cached = given_features(batch)
    online = OnlineFeatures(TargetReader(target, (1, 2, 4), torch.float32)).read(batch)
    assert cached is not None
    for row, length in enumerate(data.lengths.tolist()):
        for mine, theirs in zip(cached[:2], online[:2], strict=True):
            torch.testing.assert_close(
                mine[row, : length - 1], theirs[row, : length - 1], rtol=1e-4, atol=1e-4
            )
        assert cached.top[row, : length - 1].tolist() == online.top[row, : length - 1].tolist()
        assert float(cached.states[row, length - 1 :].abs().sum()) == 0


@pytest.mark.usefixtures("small_shards")
def test_filling_goes_on_after_a_kill(
    target: Any, data: TrainingSequences, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cache_of(target, data, tmp_path / "whole")
    number = whole.fill(progress=False)

    cache, calls = cache_of(target, data, tmp_path / "killed"), []

    def killed() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.fill(progress=False, on_batch=killed)
    # A kill while a shard is written leaves a file that no index names.
    (cache.folder / "features-00002.safetensors").write_bytes(b"torn")
    again = cache_of(target, data, tmp_path / "killed")
    assert again.fill(progress=False) == number - 2
    for index in range(12):
        for mine, theirs in zip(again.read(index), whole.read(index), strict=True):
            assert mine.equal(theirs)


def stop_after(number: int) -> Callable[[], None]:
    """Return what is to be called after each batch, and raises after so many."""
    calls: list[int] = []

    def stop() -> None:
        calls.append(1)
        if len(calls) == number:
            raise TimeoutError

    return stop


def test_a_shard_that_is_stopped_within_goes_on_where_it_was(
    target: Any, data: TrainingSequences, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = cache_of(target, data, tmp_path / "whole")
    assert whole.fill(tokens_at_once=31, progress=False) == 1
    cache = cache_of(target, data, tmp_path)
    with pytest.raises(TimeoutError):
        cache.fill(tokens_at_once=31, progress=False, on_batch=stop_after(3))
    (begun,) = json.loads((cache.folder / INDEX_JSON).read_text())["shards"]
    assert 3 <= begun["sequences"] < 12
    assert not json.loads((cache.folder / INDEX_JSON).read_text())["finished"]
    with pytest.raises(ValueError, match="not filled"):
        cache.read(int(data.lengths.argmin()))

    read, tokens = TargetReader.read, []

    def counted(self: TargetReader, ids: Any, lengths: Any, scored: Any) -> Any:
        tokens.append(int(lengths.sum()))
        return read(self, ids, lengths, scored)

    monkeypatch.setattr(TargetReader, "read", counted)
    again = cache_of(target, data, tmp_path)
    assert again.fill(tokens_at_once=31, progress=False) == 1
    assert sum(tokens) == data.lengths.sum() - begun["tokens"]
    assert same(rows_of(again), rows_of(whole))
    assert json.loads((cache.folder / INDEX_JSON).read_text())["finished"]


def test_a_begun_shard_that_was_damaged_is_computed_anew(
    target: Any, data: TrainingSequences, tmp_path: Path
) -> None:
    whole = cache_of(target, data, tmp_path / "whole")
    whole.fill(tokens_at_once=31, progress=False)
    cache = cache_of(target, data, tmp_path)
    with pytest.raises(TimeoutError):
        cache.fill(tokens_at_once=31, progress=False, on_batch=stop_after(3))
    shard = cache.folder / "features-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    again = cache_of(target, data, tmp_path)
    assert again.fill(tokens_at_once=31, progress=False) == 1
    assert same(rows_of(again), rows_of(whole))


def rows_of(cache: FeatureCache) -> list[torch.Tensor]:
    return [numbers for index in range(12) for numbers in cache.read(index)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(mine.equal(theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.mark.usefixtures("small_shards")
def test_a_shard_of_another_content_is_named_and_the_way_out_works(
    target: Any, data: TrainingSequences, tmp_path: Path
) -> None:
    cache = cache_of(target, data, tmp_path)
    cache.fill(progress=False)
    before = rows_of(cache)
    shard = cache.folder / "features-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    fresh = cache_of(target, data, tmp_path)
    assert fresh.fill(progress=False) == 0
    with pytest.raises(
        ValueError, match=r"features-00001\.safetensors.*damaged.*changed: delete this file"
    ):
        rows_of(fresh)
    shard.unlink()
    again = cache_of(target, data, tmp_path)
    assert again.fill(progress=False) == 1
    assert same(rows_of(again), before)


@pytest.mark.usefixtures("small_shards")
def test_a_shard_that_was_cut_short_is_computed_anew_alone(
    target: Any, data: TrainingSequences, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = cache_of(target, data, tmp_path)
    number = cache.fill(progress=False)
    before = rows_of(cache)
    for name in ("features-00000.safetensors", "features-00002.safetensors"):
        shard = cache.folder / name
        shard.write_bytes(shard.read_bytes()[:-9])
    others = {path: path.stat().st_mtime_ns for path in cache.folder.glob("*1.safetensors")}
    with pytest.raises(ValueError, match=r"features-0000[02]\.safetensors.*bytes.*run again"):
        rows_of(pickle.loads(pickle.dumps(cache)))
    again = cache_of(target, data, tmp_path)
    with pytest.raises(KeyboardInterrupt):  # a kill amid it leaves the other one to be found
        again.fill(progress=False, on_batch=interrupt)
    assert "features-00002.safetensors, which has" in caplog.text
    again = cache_of(target, data, tmp_path)
    assert again.fill(progress=False) == 1
    assert same(rows_of(again), before)
    assert others == {path: path.stat().st_mtime_ns for path in others}
    index = json.loads((cache.folder / INDEX_JSON).read_text())
    assert index["finished"]
    assert [shard["file"][9:14] for shard in index["shards"]] == [f"{n:05}" for n in range(number)]


@pytest.mark.usefixtures("small_shards")
def test_an_index_never_names_what_takes_a_damaged_shard_s_place(
    target: Any, data: TrainingSequences, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill right after the shard is written would leave another content with the old sum."""
    cache = cache_of(target, data, tmp_path)
    cache.fill(progress=False)
    shard = cache.folder / "features-00000.safetensors"
    shard.unlink()
    write = vocabulary_files.write_atomically

    def killed_after(place: Path, content: bytes) -> None:
        write(place, content)
        if place == shard:
            raise KeyboardInterrupt

    monkeypatch.setattr(feature_shards, "write_atomically", killed_after)
    with pytest.raises(KeyboardInterrupt):
        cache_of(target, data, tmp_path).fill(progress=False)
    assert shard.is_file()
    monkeypatch.undo()
    monkeypatch.setattr(feature_cache, "_SHARD_BYTES", 48 * 4 * 4 * 60)
    assert cache_of(target, data, tmp_path).fill(progress=False) == 1


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("index", ["{", "[]", '{"shards": [1]}', "other"])
def test_a_damaged_index_costs_no_more_than_the_features(
    target: Any,
    data: TrainingSequences,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    index: str,
) -> None:
    cache = cache_of(target, data, tmp_path)
    cache.fill(progress=False)
    before = rows_of(cache)
    place = cache.folder / INDEX_JSON
    place.write_text(
        json.dumps({**json.loads(place.read_text()), "fingerprint": "0" * 64})
        if index == "other"
        else index
    )
    again = cache_of(target, data, tmp_path)
    assert again.fill(progress=False) == 1
    assert "features.json, which is" in caplog.text
    assert same(rows_of(again), before)


@pytest.mark.usefixtures("small_shards")
def test_what_a_kill_left_half_written_is_removed(
    target: Any, data: TrainingSequences, tmp_path: Path
) -> None:
    cache = cache_of(target, data, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cache.fill(progress=False, on_batch=interrupt)
    left = [".features-00001.safetensors.a_b1c2d3", ".features.json.12345678"]
    mine = [".features-00001.safetensors.note", ".features", "notes.txt"]
    for name in (*left, *mine):
        (cache.folder / name).write_text("x")
    cache.fill(progress=False)
    names = {path.name for path in cache.folder.iterdir()}
    assert names & {*left, *mine} == set(mine)


@pytest.mark.usefixtures("small_shards")
def test_a_second_training_waits_and_finds_the_shards_done(
    target: Any,
    data: TrainingSequences,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[two fill one cache with other micro-batches, and overwrite each other's shards]"""
    monkeypatch.setattr(feature_shards, "_POLL_SECONDS", 0.01)
    first, second = cache_of(target, data, tmp_path), cache_of(target, data, tmp_path)
    begun, told = threading.Event(), threading.Event()
    computed: list[int] = []

    def fill_second() -> None:
        begun.wait(60)
        computed.append(second.fill(tokens_at_once=31, progress=False))

    def wait_until_the_second_waits() -> None:
        begun.set()
        assert told.wait(60)

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waiting until it is done" in record.getMessage():
                told.set()

    handler = Told()
    logging.getLogger(feature_shards.__name__).addHandler(handler)
    thread = threading.Thread(target=fill_second)
    thread.start()
    try:
        first.fill(progress=False, on_batch=wait_until_the_second_waits)
    finally:
        thread.join(60)
        logging.getLogger(feature_shards.__name__).removeHandler(handler)
    assert computed == [0]
    assert f"another process computes features in {first.folder}" in caplog.text
    assert same(rows_of(first), rows_of(second))


def test_a_cache_that_is_whole_needs_no_lock_and_no_room(
    target: Any, data: TrainingSequences, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a folder that may only be read is enough."""
    cache_of(target, data, tmp_path).fill(progress=False)

    def no_lock(folder: Path) -> Any:
        raise PermissionError(folder)

    monkeypatch.setattr(feature_shards, "_alone", no_lock)
    fresh = cache_of(target, data, tmp_path)
    assert fresh.fill(progress=False) == 0
    assert len(rows_of(fresh)) == 36


@pytest.mark.usefixtures("small_shards")
def test_a_full_disk_is_noticed_before_anything_is_computed(
    target: Any, data: TrainingSequences, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_of(target, data, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cache.fill(progress=False, on_batch=interrupt)
    asked: list[int] = []
    check = feature_shards.ShardFiles.check_room

    def noted(files: feature_shards.ShardFiles, size: int) -> None:
        asked.append(size)
        check(files, size)

    monkeypatch.setattr(feature_shards.ShardFiles, "check_room", noted)
    usage = shutil.disk_usage(tmp_path)
    before = sum(path.stat().st_size for path in cache.folder.glob("*.safetensors"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=9_000))
    with pytest.raises(OSError, match=r"take 0\.\d\d GB in .*0\.00 GB are free: make room"):
        cache.fill(progress=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=asked[0]))
    assert cache.fill(progress=False) > 1
    after = sum(path.stat().st_size for path in cache.folder.glob("*.safetensors"))
    assert after - before == pytest.approx(asked[0], rel=0.1), "but for the headers"


def test_a_shard_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    sync, replace, opens = os.fsync, Path.replace, os.open

    def synced(handle: int) -> None:
        happened.append("folder" if os.path.isdir(f"/dev/fd/{handle}") else "file")  # noqa: PTH112
        sync(handle)

    def replaced(place: Path, other: Path) -> Path:
        happened.append("name")
        return replace(place, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    vocabulary_files.write_atomically(tmp_path / "x", b"1")
    assert happened == ["file", "name", "folder"]

    def opened(place: Any, *more: Any) -> int:
        if Path(place) == tmp_path:
            raise PermissionError(place)
        return opens(place, *more)

    monkeypatch.setattr(os, "open", opened)
    vocabulary_files.write_atomically(tmp_path / "x", b"2")
    assert (tmp_path / "x").read_bytes() == b"2"


def test_another_vocabulary_finds_the_features_of_the_first(
    target: Any, data: TrainingSequences, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What decides the features is the target's and the data's, and is all that the key holds."""
    sizes = (range(3, 200), range(5, 250))
    drafts = [make_eagle(target, ids, layers=(1, 2, 4)) for ids in sizes]
    caches = [
        FeatureCache(
            tmp_path,
            data,
            TargetReader(target, draft.config.target_layer_ids, torch.float32),
            model_hash(target),
        )
        for draft in drafts
    ]
    assert caches[0].fill(progress=False) == 1

    def never(*_: Any) -> None:
        raise AssertionError("the target is read again")

    monkeypatch.setattr(TargetReader, "read", never)
    assert caches[1].fill(progress=False) == 0
    assert same(rows_of(caches[0]), rows_of(caches[1]))
    monkeypatch.undo()
    target.config.rms_norm_eps *= 2
    reader = TargetReader(target, (1, 2, 4), torch.float32)
    assert FeatureCache(tmp_path, data, reader, model_hash(target)).fill(progress=False) == 1


def test_a_cache_belongs_to_target_data_layers_and_dtype(
    target: Any, data: TrainingSequences, tmp_path: Path
) -> None:
    fewer = TrainingSequences.from_pairs(
        [(item["input_ids"], item["assistant_mask"]) for item in data][:11]
    )
    caches = [
        cache_of(target, data, tmp_path),
        cache_of(target, data, tmp_path, fingerprint="other"),
        cache_of(target, data, tmp_path, layers=(0, 2, 4)),
        cache_of(target, data, tmp_path, dtype=torch.bfloat16),
        cache_of(target, fewer, tmp_path),
    ]
    assert len({cache.folder for cache in caches}) == 5
    assert caches[0].folder == cache_of(target, data, tmp_path).folder
    caches[0].fill(progress=False)
    assert json.loads((caches[0].folder / INDEX_JSON).read_text())["finished"]


def test_reading_before_filling_says_so(
    target: Any, data: TrainingSequences, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="not filled"):
        cache_of(target, data, tmp_path).read(0)


def test_features_are_kept_in_bfloat16(
    target: Any, data: TrainingSequences, tmp_path: Path
) -> None:
    cache = cache_of(target, data, tmp_path, dtype=torch.bfloat16)
    cache.fill(progress=False)
    assert cache.read(0).states.dtype == torch.bfloat16
    assert cache.read(0).top.dtype == torch.int32
    # What loads batches in another process has no use for the target.
    copy = pickle.loads(pickle.dumps(CachedSequences(data, cache)))
    assert copy[3]["features"].states.equal(cache.read(3).states)
    assert len(pickle.dumps(cache)) < 50_000


def test_auto_is_the_user_s_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTRIM_CACHE", str(tmp_path))
    assert features_folder("auto") == tmp_path / "features"
    assert features_folder(str(tmp_path / "x")) == tmp_path / "x"
