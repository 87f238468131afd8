"""First half of `make test-vllm`: exports of SmolLM2 drafts, and what they do in Transformers.

Drafts with random weights have nothing accepted, which proves nothing; so two drafts, one with
layers other than the defaults, learn the target's own continuations of a few prompts by heart.
They are of no use, but show whether another engine accepts the same tokens.

    python tests/engines/export_for_vllm.py FOLDER

writes FOLDER/expected.json and beside it an export of each draft in each of two dtypes: bfloat16,
which is served, where engines differ by ties; and float32, where they may not differ at all.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from vtrim_hf import DraftVocabulary, TrimmedDraftForCausalLM
from vtrim_hf.eagle_unroll import unroll
from vtrim_hf.embedded_models import load_model, load_tokenizer, resolve_model
from vtrim_hf.exporting import export_draft
from vtrim_hf.measuring_step import read_prompts

DATA = Path(__file__).resolve().parents[2] / "examples" / "data" / "wikisql" / "test.jsonl"
PROMPTS, NEW, DRAFTED = 16, 40, 4
CONTEXT = 24  # tokens of a prompt that a draft sees while it learns
LEARNT = 0.15  # loss at which learning ends
LAYERS = {"default-layers": None, "other-layers": (1, 6, 29)}
DTYPES = ("bfloat16", "float32")


def continuations(target: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Return each prompt with the target's greedy continuation of `NEW` tokens."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    said = target.generate(ids, attention_mask=mask, max_new_tokens=NEW)[:, longest:].tolist()
    return [prompt + more for prompt, more in zip(prompts, said, strict=True)]


@torch.no_grad()
def read_states(target: Any, texts: list[list[int]], layers: Any) -> torch.Tensor:
    """Return three states side by side of the last tokens but one, [texts, length, 3d]."""
    found = []
    for text in texts:
        output = target(torch.tensor([text]), output_hidden_states=list(layers))
        states = torch.cat([output.hidden_states[layer] for layer in layers], dim=-1)
        found.append(states[0, -CONTEXT - NEW : -1])
    return torch.stack(found)


def learn(draft: Any, target: Any, texts: list[list[int]], passes: int) -> None:
    """Let a draft learn texts by heart."""
    features = read_states(target, texts, draft.config.target_layer_ids)
    ids = torch.tensor([text[-CONTEXT - NEW :] for text in texts])
    labels = torch.full_like(ids, -100)
    labels[:, CONTEXT:] = draft.vocabulary.to_draft(ids[:, CONTEXT:])
    embeds = target.get_input_embeddings()(ids[:, 1:]).detach()
    draft.train()
    optimizer = torch.optim.AdamW(draft.parameters(), lr=3e-3, weight_decay=0.0)
    start = time.monotonic()
    mean, done = torch.inf, 0
    while mean > LEARNT and done < passes:
        losses = []
        for some in torch.randperm(len(texts)).split(4):
            loss = torch.zeros(())
            states = unroll(draft.body, embeds[some], features[some], DRAFTED)
            for step, state in enumerate(states):
                # Column i of a step scores token i + step + 2; only the continuations count.
                wanted = labels[some, step + 2 :]
                heard = wanted != -100
                rows = draft.body.score(state[:, : wanted.shape[1]][heard])
                loss = loss + functional.cross_entropy(rows, wanted[heard]) / DRAFTED
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        mean, done = sum(losses) / len(losses), done + 1
    seconds = time.monotonic() - start
    print(f"learnt for {seconds:.0f} s, {done} passes, loss {mean:.3f}", flush=True)
    draft.eval()


def draft_and_watch(target: Any, draft: Any, prompt: list[int]) -> tuple[list[int], list[int]]:
    """Return what is said, and how many of `DRAFTED` tokens were accepted in each round.

    An engine drafts as many tokens in its last round as in the others, so this one goes on a
    little longer, and rounds that begin after `NEW` tokens are left out.
    """
    rounds: list[int] = []
    make = type(draft).make_candidate_generator

    def watched(**call: Any) -> Any:
        generator = make(draft, **call)
        propose, follow = generator.get_candidates, generator.update_candidate_strategy
        counts = False

        def get_candidates(ids: torch.Tensor, **inputs: Any) -> Any:
            nonlocal counts
            longer, scores = propose(ids, **inputs)
            drafted = longer.shape[1] - ids.shape[1]
            counts = drafted > 0 and ids.shape[1] - len(prompt) < NEW
            if counts and drafted != DRAFTED:
                raise RuntimeError(f"a round drafted {drafted} tokens")
            return longer, scores

        def update(ids: torch.Tensor, scores: torch.Tensor, matches: int) -> None:
            if counts:
                rounds.append(int(matches))
            follow(ids, scores, matches)

        generator.get_candidates, generator.update_candidate_strategy = get_candidates, update
        return generator

    draft.make_candidate_generator = watched
    said = target.generate(
        torch.tensor([prompt]), assistant_model=draft, max_new_tokens=NEW + 2 * DRAFTED + 2
    )
    del draft.make_candidate_generator
    return said[0, len(prompt) : len(prompt) + NEW].tolist(), rounds


@torch.no_grad()
def nearest(target: Any, prompt: list[int], said: list[int]) -> list[dict[str, float]]:
    """Return, for each token that was said, how far below the best one the next best are."""
    logits = target(torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1].float()
    best, ids = logits.topk(8, dim=-1)
    gaps = (best[:, :1] - best).tolist()
    return [
        {str(token): gap for token, gap in zip(row, gap_row, strict=True)}
        for row, gap_row in zip(ids.tolist(), gaps, strict=True)
    ]


def load_target(dtype: str) -> Any:
    """Load the target anew: a model that is moved to bfloat16 has its rotary angles rounded."""
    target = load_model("smollm2", dtype=dtype)
    # Texts of one length: an engine counts what it drafts behind an end-of-turn token, too.
    target.generation_config.eos_token_id = None
    target.generation_config.pad_token_id = 0
    return target


def compare_in(dtype: str, name: str, prompts: list[list[int]], folder: Path) -> dict[str, Any]:
    """Export a draft in a dtype, and return what it does here in that dtype."""
    target = load_target(dtype)
    draft = TrimmedDraftForCausalLM.from_pretrained(folder / name, dtype=getattr(torch, dtype))
    place = export_draft(draft, "eagle", folder / f"{name}-{dtype}")
    runs = [draft_and_watch(target, draft, prompt) for prompt in prompts]
    rounds = [accepted for _, row in runs for accepted in row]
    rates = [sum(count > at for count in rounds) / len(rounds) for at in range(DRAFTED)]
    shown = ", ".join(f"{rate:.3f}" for rate in rates)
    print(f"{place.name}: {len(rounds)} drafts, accepted {shown}", flush=True)
    return {
        "folder": place.name,
        "layers": draft.config.target_layer_ids,
        "dtype": dtype,
        "rounds": [row for _, row in runs],
        "said": [said for said, _ in runs],
        "nearest": [
            nearest(target, prompt, said) for prompt, (said, _) in zip(prompts, runs, strict=True)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--passes", type=int, default=40, help="at most, that a draft learns for")
    chosen = parser.parse_args()
    torch.manual_seed(0)
    target, tokenizer = load_target("float32"), load_tokenizer("smollm2")
    prompts = [list(map(int, prompt)) for prompt in read_prompts(str(DATA), tokenizer, PROMPTS)]
    texts = continuations(target, prompts)
    vocabulary = DraftVocabulary.from_ids(
        sorted({token for text in texts for token in text[-NEW:]}),
        vocab_size=target.config.vocab_size,
        tokenizer=tokenizer,
    )
    for name, layers in LAYERS.items():
        # A narrow MLP learns faster.
        draft = TrimmedDraftForCausalLM.for_target(
            target, vocabulary, layers=layers, intermediate_size=512
        )
        draft.generation_config.update(
            num_assistant_tokens=DRAFTED,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
        learn(draft, target, texts, chosen.passes)
        draft.save_pretrained(chosen.folder / name)
    del target
    expected = {
        "target": resolve_model("smollm2"),
        "drafted": DRAFTED,
        "new": NEW,
        "prompts": prompts,
        "runs": [
            compare_in(dtype, name, prompts, chosen.folder) for name in LAYERS for dtype in DTYPES
        ],
    }
    (chosen.folder / "expected.json").write_text(json.dumps(expected), encoding="utf-8")


if __name__ == "__main__":
    main()
