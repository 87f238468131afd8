"""What one step of an EAGLE-3 draft costs beside its bare matrix products.

    python examples/bench_draft_step.py
    python examples/bench_draft_step.py --target Qwen/Qwen2.5-1.5B-Instruct --kept 8000

Without arguments: a draft for SmolLM2 with random weights, whose speed is that of trained ones.
One step is what `generate` does for one token: fusing the target's states (which in truth only the
first step of a round does), the layer, the head. The yardstick is every matrix product in it, one
after the other, with nothing between: fc, queries-keys-values, attention's two, output, the MLP's,
the head. Both take turns in one process; the median ratio counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace

import torch
from bench_arguments import DTYPES
from torch.nn.functional import linear
from transformers import AutoModelForCausalLM

from vtrim_hf import DraftVocabulary, TrimmedDraftForCausalLM
from vtrim_hf.eagle_session import EagleSession
from vtrim_hf.embedded_models import load_model

CONTEXT = 200
TURNS, STEPS = 60, 20


def bare_products(draft: TrimmedDraftForCausalLM) -> Callable[[], None]:
    """Return every product of one step, on numbers of the right shapes."""
    body = draft.body
    config, attention, mlp = body.config, body.midlayer.self_attn, body.midlayer.mlp
    qkv, gate_up = body.pack()
    groups = attention.heads // attention.key_heads

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=body.dtype)

    one = numbers(1, 1, config.hidden_size)
    both, three = numbers(1, 1, 2 * config.hidden_size), numbers(1, 1, 3 * config.hidden_size)
    inside = numbers(1, 1, config.intermediate_size)
    found = numbers(1, 1, attention.heads * attention.head_dim)
    queries = numbers(1, attention.key_heads, groups, attention.head_dim)
    keys = numbers(1, attention.key_heads, CONTEXT, attention.head_dim)
    weights = numbers(1, attention.key_heads, groups, CONTEXT)

    def products() -> None:
        linear(three, body.fc.weight)
        linear(both, qkv.weight)
        torch.matmul(queries, keys.transpose(-1, -2))
        torch.matmul(weights, keys)
        linear(found, attention.o_proj.weight)
        linear(one, gate_up.weight)
        linear(inside, mlp.down_proj.weight)
        linear(one, body.lm_head.weight)

    return products


def one_step(draft: TrimmedDraftForCausalLM, target: torch.nn.Module) -> Callable[[], None]:
    """Return one step behind a context, taken back again outside the clock."""
    layers, width = draft.config.target_layer_ids, draft.body.config.hidden_size
    session = EagleSession(draft.body, layers, target.get_input_embeddings(), None)
    states = [torch.randn(1, CONTEXT, width, dtype=draft.dtype)] * (layers[-1] + 1)
    ids = torch.arange(CONTEXT + 1)[None]
    session.catch_up(ids, model_outputs=SimpleNamespace(hidden_states=states))
    embeds = target.get_input_embeddings()(ids[:, :1])
    features = torch.randn(1, 1, 3 * width, dtype=draft.dtype)

    def step() -> None:
        session.read(embeds, target_hidden_states=features)
        session.forget(1)

    return step


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    for _ in range(STEPS):
        work()
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="Hub id or folder; the embedded SmolLM2 by default")
    parser.add_argument("--kept", type=int, default=4096, help="k, rows of the draft's head")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["bfloat16", "float32"])
    args = parser.parse_args()
    for name in args.dtypes:
        dtype = getattr(torch, name)
        if args.target:
            target = AutoModelForCausalLM.from_pretrained(args.target, dtype=dtype)
        else:
            target = load_model("smollm2").to(dtype)
        width = target.config.get_text_config().vocab_size
        vocabulary = DraftVocabulary.from_ids(range(args.kept), vocab_size=width)
        draft = TrimmedDraftForCausalLM.for_target(target, vocabulary)
        with torch.inference_mode():
            bare, step = bare_products(draft), one_step(draft, target)
            pairs = [(seconds(bare), seconds(step)) for _ in range(TURNS)][5:]
        ratios = sorted(taken / needed for needed, taken in pairs)
        low, high = ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]
        print(
            f"{name}, {torch.get_num_threads()} threads, k = {args.kept}: products "
            f"{1e3 * statistics.median(p[0] for p in pairs):.3f} ms, step "
            f"{1e3 * statistics.median(p[1] for p in pairs):.3f} ms, ratio "
            f"{statistics.median(ratios):.3f} (quartiles {low:.3f} to {high:.3f})"
        )


if __name__ == "__main__":
    main()
