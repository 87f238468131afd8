"""What the tests of training share: a tiny target that says something learnable, and its texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tiny_models import make_tiny
from vtrim_hf.training_arguments import DraftTrainingArguments
from vtrim_hf.training_data import TrainingSequences

PROMPT = 6


def fluent_target(passes: int = 80) -> Any:
    """Return a tiny target that has learnt one rule: each token decides the next.

    A target of random weights says nothing that a draft could learn from a few texts.
    """
    target = make_tiny("llama", num_hidden_layers=4, initializer_range=0.05)
    optimizer = torch.optim.AdamW(target.parameters(), lr=3e-3)
    target.train()
    for _ in range(passes):
        ids = rule_texts(16, 24)
        loss = target(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return target.eval().requires_grad_(False)


def rule_texts(number: int, length: int) -> torch.Tensor:
    """Return texts in which each token decides the next, int64 [number, length]."""
    follows = torch.randperm(60, generator=torch.Generator().manual_seed(7)) + 10
    ids = [torch.randint(10, 70, (number,))]
    for _ in range(length - 1):
        ids.append(follows[ids[-1] - 10])
    return torch.stack(ids, dim=1)


def said_by(target: Any, prompts: torch.Tensor, length: int = 20) -> TrainingSequences:
    """Return the target's own greedy texts behind prompts, as sequences to train on."""
    ids = target.generate(prompts, max_new_tokens=length, do_sample=False)
    return sequences(ids, prompts.shape[1])


def sequences(ids: torch.Tensor, prompt: int) -> TrainingSequences:
    """Return rows of ids as sequences whose prompts have one length."""
    mask = np.arange(ids.shape[1]) >= prompt
    return TrainingSequences.from_pairs([(row.numpy(), mask) for row in ids])


def settings(folder: Any, **wishes: Any) -> DraftTrainingArguments:
    """Return settings for a short training on one CPU thread, without evaluations."""
    calm = {
        "bf16": False,
        "use_cpu": True,
        "disable_tqdm": True,
        "eval_strategy": "no",
        "save_strategy": "no",
        "load_best_model_at_end": False,
        "logging_steps": 1,
        "per_device_train_batch_size": 4,
        "max_steps": 4,
    }
    return DraftTrainingArguments(str(folder), **{**calm, **wishes})
