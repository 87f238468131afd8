from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tiny_models import make_prompt, make_tiny
from vtrim_hf import feature_cache
from vtrim_hf.feature_cache import (
    INDEX_JSON,
    CachedSequences,
    FeatureCache,
    OnlineFeatures,
    features_folder,
)
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
        cache.fill(progress=False, on_shard=killed)
    # A kill while a shard is written leaves a file that no index names.
    (cache.folder / "features-00002.safetensors").write_bytes(b"torn")
    again = cache_of(target, data, tmp_path / "killed")
    assert again.fill(progress=False) == number - 2
    for index in range(12):
        for mine, theirs in zip(again.read(index), whole.read(index), strict=True):
            assert mine.equal(theirs)


@pytest.mark.usefixtures("small_shards")
def test_a_damaged_shard_is_named(target: Any, data: TrainingSequences, tmp_path: Path) -> None:
    cache = cache_of(target, data, tmp_path)
    cache.fill(progress=False)
    shard = cache.folder / "features-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    fresh = cache_of(target, data, tmp_path)
    fresh.fill(progress=False)
    with pytest.raises(ValueError, match=r"features-00001\.safetensors.*damaged.*changed"):
        [fresh.read(index) for index in range(12)]
    shard.write_bytes(content[:-9])
    with pytest.raises(ValueError, match=r"features-00001\.safetensors.*bytes"):
        cache_of(target, data, tmp_path).fill(progress=False)
    (cache.folder / INDEX_JSON).write_text("{")
    with pytest.raises(ValueError, match="no index of features"):
        cache_of(target, data, tmp_path).fill(progress=False)


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
    index = json.loads((caches[0].folder / INDEX_JSON).read_text())
    assert index["finished"]
    index["fingerprint"] = "0" * 64
    (caches[0].folder / INDEX_JSON).write_text(json.dumps(index))
    with pytest.raises(ValueError, match="other features"):
        caches[0].fill(progress=False)


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
