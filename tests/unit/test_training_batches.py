from __future__ import annotations

import numpy as np
import torch

from vtrim_hf.training_batches import GroupedSampler, collate, given_features, run_lengths
from vtrim_hf.training_data import TrainingSequences
from vtrim_hf.training_features import Features


def test_every_sequence_comes_once_an_epoch_in_batches_of_one_length() -> None:
    lengths = np.random.default_rng(0).integers(3, 90, 203)
    sampler = GroupedSampler(lengths, 8, seed=1)
    first = list(sampler)
    assert sorted(first) == list(range(203))
    padded = sum(max(lengths[first[at : at + 8]]) * 8 for at in range(0, 200, 8))
    assert padded < 1.15 * lengths[first[:200]].sum()
    assert list(sampler) == first, "the same epoch has the same order"
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert first == list(GroupedSampler(lengths, 8, seed=1))
    assert first != list(GroupedSampler(lengths, 8, seed=2))
    heads = [lengths[at] for at in first[0:200:8]]
    assert heads != sorted(heads), "batches come in any order of lengths"


def test_runs_end_with_the_assistant_s_turn() -> None:
    said = np.array([[0, 1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 1, 1, 1]], dtype=bool)
    assert run_lengths(said).tolist() == [[0, 3, 2, 1, 0, 1, 0], [7, 6, 5, 4, 3, 2, 1]]


def test_columns_are_two_before_the_assistant_s_tokens() -> None:
    data = TrainingSequences.from_pairs(
        [
            (np.arange(7), np.array([0, 0, 0, 1, 1, 0, 1], dtype=bool)),
            (np.arange(10, 14), np.array([1, 1, 1, 1], dtype=bool)),
        ]
    )
    batch = collate([data[0], data[1]])
    assert batch["columns"].tolist() == [[1, 2, 4], [0, 1, 0]]
    assert batch["runs"].tolist() == [[2, 1, 1], [2, 1, 0]]
    assert batch["lengths"].tolist() == [7, 4]
    assert batch["input_ids"][1].tolist() == [10, 11, 12, 13, 0, 0, 0]
    assert given_features(batch) is None


def test_features_are_padded_like_the_ids() -> None:
    data = TrainingSequences.from_pairs([(np.arange(n), np.ones(n, dtype=bool)) for n in (5, 3)])
    rows = [
        {
            **data[at],
            "features": Features(torch.ones(n - 1, 6), torch.ones(n - 1, 2), torch.ones(n - 1)),
        }
        for at, n in ((0, 5), (1, 3))
    ]
    found = given_features(collate(rows))
    assert found is not None
    assert found.states.shape == (2, 4, 6)
    assert found.last[1].sum() == 4
    assert found.top[1].tolist() == [1, 1, 0, 0]
