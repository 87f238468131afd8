"""The calls of one measurement: every way of decoding on every prompt, one row a prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .decoding_meter import CallTally, Clocks, metered, unwrapped
from .decoding_prompts import prompt_digest
from .decoding_ways import DecodingWay

_PROBE_PROMPTS = 2
_PROBE_MARGIN = 1.15
_WARMUP_TOKENS = 16
_NEAR_TIE_STEPS = 2


class DecodingRuns:
    """The calls of one measurement."""

    def __init__(
        self,
        *,
        model: Any,
        kwargs: dict[str, Any],
        max_new_tokens: int,
        do_sample: bool,
        seed: int,
        tokenizer: Any,
    ) -> None:
        self.model = model
        self.kwargs = kwargs
        self.max_new_tokens = max_new_tokens
        self.do_sample = do_sample
        self.seed = seed
        self.tokenizer = tokenizer

    def call(
        self,
        way: DecodingWay,
        inputs: Mapping[str, torch.Tensor],
        index: int,
        *,
        tokens: int | None = None,
        target: Any = None,
        clocks: Clocks = "parts",
    ) -> tuple[list[int], CallTally]:
        """Generate once; return the new ids and what it took."""
        target = way.target if target is None else target
        devices = [target.device] if target.device.type == "cuda" else []
        way.reset_generation_config()
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.seed + index)
            with metered(target, way.draft, clocks=clocks) as tally:
                output = target.generate(
                    **inputs,
                    **way.arguments,
                    **self.kwargs,
                    max_new_tokens=tokens or self.max_new_tokens,
                    do_sample=self.do_sample,
                    return_dict_in_generate=False,
                )
        return output[0, inputs["input_ids"].shape[1] :].tolist(), tally

    def warm_up(self, way: DecodingWay, inputs: Mapping[str, torch.Tensor], times: int) -> None:
        """Make some short calls that are not counted."""
        for _ in range(times):
            self.call(way, inputs, 0, tokens=min(_WARMUP_TOKENS, self.max_new_tokens))

    def probe(
        self, plain: list[DecodingWay], inputs: Sequence[Mapping[str, torch.Tensor]], warmup: int
    ) -> tuple[list[DecodingWay], list[str]]:
        """Drop the copies of the target that are clearly slower than another dtype."""
        if len(plain) == 1:
            return plain, []
        pace = {}
        for way in plain:
            self.warm_up(way, inputs[0], warmup)
            calls = [self.call(way, one, i) for i, one in enumerate(inputs[:_PROBE_PROMPTS])]
            pace[way.name] = sum(t.seconds for _, t in calls) / sum(len(ids) for ids, _ in calls)
        best = min(pace, key=pace.__getitem__)
        kept, notes = [plain[0]], []
        for way in plain[1:]:
            if pace[way.name] <= _PROBE_MARGIN * pace[best]:
                kept.append(way)
            else:
                notes.append(
                    f"{way.name} took {pace[way.name] / pace[best]:.2f} times as long as {best} "
                    "on the first prompts and was not measured further"
                )
        return kept, notes

    def row(
        self,
        index: int,
        inputs: Mapping[str, torch.Tensor],
        everything: Sequence[DecodingWay],
        reference: DecodingWay,
        repeats: int,
    ) -> dict[str, Any]:
        """Measure every way on one prompt."""
        calls: dict[str, list[tuple[list[int], CallTally]]] = {w.name: [] for w in everything}
        for repeat in range(repeats):
            turn = (index * repeats + repeat) % len(everything)
            for way in [*everything[turn:], *everything[:turn]]:
                calls[way.name].append(self.call(way, inputs, index, clocks=way.clocks))
        own_ids = calls[everything[0].name][0][0]
        other = reference.target is not everything[0].target
        plain_ids = self.call(reference, inputs, index)[0] if other else own_ids
        entries = {}
        for way in everything:
            ids, tally = sorted(calls[way.name], key=lambda c: c[1].seconds)[(repeats - 1) // 2]
            if way.clocks != "parts":  # they slow it down: another call tells the parts
                tally.take_parts(self.call(way, inputs, index)[1])
            cell = {
                "tokens": len(ids),
                "seconds": tally.seconds,
                "all_seconds": [one.seconds for _, one in calls[way.name]],
                "parts": tally.parts,
                "step_seconds": tally.step_seconds,
                "step_tokens": tally.step_tokens,
                "target_forwards": tally.target_forwards,
                "verified_drafts": tally.verified_drafts,
                "drafted": tally.drafted,
                "accepted": tally.accepted,
                "missing": self._missing(way, own_ids),
                "drafted_outside": way.outside(tally.proposed),
                "identical": None,
                "difference": None,
            }
            if not self.do_sample and way.facts["kind"] != "plain":
                if other:
                    ids = self.call(way, inputs, index, target=reference.target)[0]
                cell["identical"] = ids == plain_ids
                if ids != plain_ids:
                    cell["difference"] = {
                        "prompt": index,
                        **first_difference(reference.target, inputs["input_ids"], plain_ids, ids),
                    }
            entries[way.name] = cell
        return {
            "prompt": index,
            "digest": prompt_digest(inputs["input_ids"]),
            "prompt_tokens": inputs["input_ids"].shape[1],
            "plain_tokens": len(own_ids),
            "entries": entries,
        }

    def _missing(self, way: DecodingWay, said: list[int]) -> list[list[Any]]:
        """Return id, count and text of the target's own tokens that the draft cannot say."""
        return [
            [token, count, None if self.tokenizer is None else self.tokenizer.decode([token])]
            for token, count in sorted(Counter(said).items())
            if way.kept is not None and token not in way.kept
        ]


@torch.no_grad()
def first_difference(
    target: Any, prompt: torch.Tensor, plain: list[int], other: list[int]
) -> dict[str, Any]:
    """Say where two texts part, and how close the two tokens' logits are there."""
    position = next(
        (i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b),
        min(len(plain), len(other)),
    )
    found: dict[str, Any] = {
        "position": position,
        "plain_token": plain[position] if position < len(plain) else None,
        "token": other[position] if position < len(other) else None,
        "gap": None,
        "near_tie": False,
    }
    if found["plain_token"] is None or found["token"] is None:
        return found
    said = torch.tensor([plain[:position]], dtype=prompt.dtype, device=prompt.device)
    # one row of logits is enough, and [length, V] of them is much
    last = {"logits_to_keep": 1} if unwrapped(target)._supports_logits_to_keep() else {}
    logits = target(torch.cat([prompt, said], dim=1), **last).logits[0, -1].float()
    gap = float((logits[found["plain_token"]] - logits[found["token"]]).abs())
    step = torch.finfo(target.dtype).eps * max(1.0, float(logits.abs().max()))
    return {**found, "gap": gap, "near_tie": gap <= _NEAR_TIE_STEPS * step}
