"""Would a learnt "none of these" class pay, by which a draft owns up to words that it lacks?

    vtrim count --domain others=others.jsonl --target smollm2 --from-target -o others.safetensors
    python examples/bench_none_class.py DRAFT COUNTS --train answers.jsonl \
        --test others.others.answers.jsonl

A trimmed draft cannot say a token outside its vocabulary, and whatever it drafts from there on is
in vain. A class "none of these", one more row of the head, could end the draft in time. Here that
row is trained by logistic regression on the states of a trained draft (everything else stays), on
the target's answers of --train, and replayed on those of --test: the rounds of greedy decoding,
with drafts that end where the class is likelier than not. Beside it stand a draft of fixed length,
the confidence rule on the draft's own softmax, and an oracle that knows when the target's next
token lies outside: no class could end drafts better than that. COUNTS, what `vtrim count` wrote,
decides which ids a smaller vocabulary keeps. A round costs one verification and, for each token
drafted, --step of it (a report of `vtrim measure` tells the two times). OUTPUT gets figures.json
and report.md. Nothing is timed, so that a busy machine gives the same figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from bench_arguments import results_folder
from bench_parts import model_named
from bench_results import FIGURES, REPORT, command_line

from vtrim_hf import DraftVocabulary, TokenCounts, TrimmedDraftForCausalLM, required_token_ids
from vtrim_hf.eagle_body import normed
from vtrim_hf.eagle_unroll import unroll
from vtrim_hf.kept_ids import rows_of
from vtrim_hf.training_batches import collate
from vtrim_hf.training_data import TrainingSequences, read_sequences
from vtrim_hf.training_features import TargetReader
from vtrim_hf.training_forward import ForwardInputs
from vtrim_hf.vocabulary import write_atomically

BATCH = 16
LONGEST = 512  # tokens of a conversation
THRESHOLDS = (0.2, 0.4, 0.6)
FIXED = "fixed length"


@dataclasses.dataclass
class Drafted:
    """What the draft does at every column of one answer, one row a column, n drafted tokens.

    Attributes:
        hits: whether each token is the target's own, bool [columns, n].
        outside: whether the target's own lies outside the vocabulary, bool [columns, n].
        counted: whether the answer goes on so far, bool [columns, n].
        chance: the softmax's probability of the token, [columns, n].
        sums: logarithm of the softmax's denominator, [columns, n].
        states: what the head reads, [columns, n, d].
    """

    hits: torch.Tensor
    outside: torch.Tensor
    counted: torch.Tensor
    chance: torch.Tensor
    sums: torch.Tensor
    states: torch.Tensor

    @property
    def reached(self) -> torch.Tensor:
        """Where all tokens before are right: only there does it matter what the class says."""
        before = torch.cat([torch.ones_like(self.hits[:, :1]), self.hits[:, :-1]], dim=1)
        return before.long().cumprod(1).bool() & self.counted


def read_target(
    target: Any, draft: Any, sequences: TrainingSequences, n: int
) -> list[dict[str, Any]]:
    """Return what the draft is given on every batch of answers."""
    reader = TargetReader(target, draft.config.target_layer_ids, torch.float32)
    inputs_of = ForwardInputs(reader, draft.device, bf16=False)
    starts = range(0, len(sequences), BATCH)
    return [
        inputs_of.inputs(
            collate([sequences[i] for i in range(len(sequences))[at : at + BATCH]]), n
        )
        for at in starts
    ]


def drafted(draft: Any, batches: list[dict[str, Any]], n: int) -> Iterator[Drafted]:
    """Give what the draft does on every answer."""
    body = draft.body
    for inputs in batches:
        columns, runs, features = inputs["columns"], inputs["runs"], inputs["features"]
        owner = torch.arange(len(columns))[:, None]
        parts: dict[str, list[torch.Tensor]] = {name: [] for name in Drafted.__annotations__}
        for step, state in enumerate(
            unroll(body, inputs["inputs_embeds"], features.states, n, columns=columns)
        ):
            last = normed(state, body.norm.weight, body.midlayer.norm_eps)
            logits = body.lm_head(last)
            place = (columns + step + 1).clamp(max=features.top.shape[1] - 1)
            wanted = rows_of(features.top[owner, place].long().clamp(min=0), draft.kept_ids)
            best, guess = logits.max(-1)
            parts["counted"].append(runs > step)
            parts["hits"].append((guess == wanted) & (runs > step))
            parts["outside"].append((wanted < 0) & (runs > step))
            parts["sums"].append(logits.logsumexp(-1))
            parts["chance"].append((best - parts["sums"][-1]).exp())
            parts["states"].append(last)
        found = {name: torch.stack(each, dim=2) for name, each in parts.items()}
        for row, real in enumerate(runs > 0):
            yield Drafted(**{name: each[row][real] for name, each in found.items()})


def train_class(answers: list[Drafted]) -> Callable[[Drafted], torch.Tensor]:
    """Fit the class's row; return what gives its probability, [columns, n]."""
    places = [answer.reached for answer in answers]
    pairs = list(zip(answers, places, strict=True))
    states = torch.cat([answer.states[at] for answer, at in pairs])
    sums = torch.cat([answer.sums[at] for answer, at in pairs])
    outside = torch.cat([answer.outside[at] for answer, at in pairs]).float()
    share = outside.mean().clamp(1e-6, 1 - 1e-6)
    row = torch.zeros(states.shape[-1], requires_grad=True)
    bias = (share.log() + sums.mean()).detach().clone().requires_grad_()
    steps = torch.optim.LBFGS([row, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        steps.zero_grad()
        score = states @ row + bias - sums
        total = torch.nn.functional.binary_cross_entropy_with_logits(score, outside)
        total = total + 1e-4 * row.square().sum()
        total.backward()
        return total

    steps.step(loss)
    return lambda answer: (answer.states @ row.detach() + bias.detach() - answer.sums).sigmoid()


def replay(
    answers: list[Drafted], ends: Callable[[Drafted], torch.Tensor], *, behind: bool
) -> tuple[int, int, int]:
    """Decode greedily; return rounds, tokens drafted and tokens accepted.

    Args:
        answers: what the draft does.
        ends: where a draft ends, bool [columns, n].
        behind: whether it ends behind the token there, as by the confidence rule, or before it.
    """
    rounds = made = taken = 0
    for answer in answers:
        stop = ends(answer)
        at = 1  # the first token of an answer comes with reading the prompt
        while at < len(stop):
            n = int(answer.counted[at].sum())
            stops = stop[at, :n].nonzero()
            length = min(n, int(stops[0]) + behind) if len(stops) else n
            right = answer.hits[at, :length].long().cumprod(0).sum().item()
            rounds, made, taken = rounds + 1, made + length, taken + int(right)
            at += int(right) + 1
    return rounds, made, taken


def replayed(answers: list[Drafted], none: Callable[[Drafted], torch.Tensor], step: float) -> Any:
    """Replay every rule; return what each gives as JSON values, by its name."""
    rules: dict[str, tuple[Callable[[Drafted], torch.Tensor], bool]] = {
        FIXED: (lambda a: torch.zeros_like(a.hits), False),
        "none of these": (lambda a: none(a) > 0.5, False),
        "oracle of outside": (lambda a: a.outside, False),
    }
    for least in THRESHOLDS:
        rules[f"confidence {least}"] = (lambda a, p=least: a.chance.cumprod(1) < p, True)
    found: dict[str, dict[str, float]] = {}
    for name, (ends, behind) in rules.items():
        rounds, made, taken = replay(answers, ends, behind=behind)
        found[name] = {
            "rounds": rounds,
            "drafted": made,
            "accepted_a_round": taken / rounds,
            # Every round gives one token more than it takes from the draft.
            "verifications_a_token": (rounds + step * made) / (rounds + taken),
        }
    usual = found[FIXED]["verifications_a_token"]
    for each in found.values():
        each["time"] = each["verifications_a_token"] / usual
    return found


def markdown(found: Any) -> str:
    """Return what people read."""
    lines = [
        '# A class "none of these": what it would save',
        "",
        f"{found['draft']} for {found['target']}: trained on {found['answers']['train']} answers "
        f"of {found['train']}, replayed on {found['answers']['test']} of {found['test']}, at most "
        f"{found['draft_length']} tokens a round, a step at {found['step']} of a verification. "
        "*outside*: of the tokens that the target said. *time*: of a token, against drafts of "
        "fixed length.",
        "",
        "| k | outside | rule | rounds | drafted | accepted a round | time |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for size in found["sizes"]:
        lines += [
            f"| {size['k']:,} | {size['outside']:.2%} | {name} | {rule['rounds']:,} | "
            f"{rule['drafted']:,} | {rule['accepted_a_round']:.3f} | {rule['time']:.4f} |"
            for name, rule in size["rules"].items()
        ]
    return "\n".join([*lines, "", f"    {found['command']}", ""])


def main(argv: Sequence[str] | None = None) -> None:
    """Train the class for every size, and replay."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("draft", help="folder or Hub id of a trained draft")
    parser.add_argument("counts", help="what `vtrim count` wrote of the same domain")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--train", required=True, help="answers to train the class on")
    parser.add_argument("--test", required=True, help="other answers to replay")
    parser.add_argument("--limit", type=int, default=300, help="answers of each")
    parser.add_argument("--sizes", type=int, nargs="*", default=[400, 800, 1600])
    parser.add_argument("--draft-length", type=int, default=4)
    parser.add_argument("--step", type=float, default=0.04, help="one step, in verifications")
    parser.add_argument("--output", type=results_folder, default=Path("bench_none_class"))
    args = parser.parse_args(argv)

    judge = model_named(args.target)
    target: Any = judge.model("float32")
    whole: Any = TrimmedDraftForCausalLM.from_pretrained(args.draft, dtype=torch.float32)
    counts = TokenCounts.load(args.counts)
    required = required_token_ids(judge.tokenizer, target.generation_config)
    parts = {}
    for name in ("train", "test"):
        read, _ = read_sequences(
            getattr(args, name), judge.tokenizer, max_length=LONGEST, vocab_size=judge.vocab_size
        )
        end = read.starts[min(args.limit, len(read))]
        starts = read.starts[: args.limit + 1]
        parts[name] = TrainingSequences(read.ids[:end], read.mask[:end], starts)
    known = set(whole.kept_ids.tolist())
    n = args.draft_length
    with torch.inference_mode():
        batches = {name: read_target(target, whole, each, n) for name, each in parts.items()}
    found: dict[str, Any] = {
        **{name: value for name, value in vars(args).items() if name not in ("output", "sizes")},
        "answers": {name: len(each) for name, each in parts.items()},
        "command": command_line("bench_none_class.py", argv),
        "sizes": [],
    }
    for size in [*(size for size in args.sizes if size < len(known)), len(known)]:
        draft = whole
        if size < len(known):
            ids = DraftVocabulary.from_counts(counts, size, required=required.ids)
            kept = sorted(known & set(ids.ids.tolist()))
            small = DraftVocabulary.from_ids(
                kept, vocab_size=judge.vocab_size, tokenizer=judge.tokenizer
            )
            draft = whole.retrim(small)
        with torch.inference_mode():
            train, test = (list(drafted(draft, batches[name], n)) for name in ("train", "test"))
        none = train_class([dataclasses.replace(a, states=a.states.clone()) for a in train])
        outside = sum(int(a.outside[:, 0].sum()) for a in test) / sum(len(a.hits) for a in test)
        found["sizes"].append(
            {
                "k": len(draft.kept_ids),
                "outside": outside,
                "rules": replayed(test, none, args.step),
            }
        )
    text = markdown(found)
    args.output.mkdir(parents=True, exist_ok=True)
    write_atomically(args.output / REPORT, text.encode())
    write_atomically(args.output / FIGURES, (json.dumps(found, indent=1) + "\n").encode())
    print(text)


if __name__ == "__main__":
    main()
