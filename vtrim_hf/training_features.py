"""What training reads from the target: its states, its likeliest tokens, its logits.

The target is only ever read: it is no part of a draft, keeps its mode and device, and nothing here
makes a tensor of its width for more than a few hundred positions at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from .compatibility import unwrap
from .standalone_body import rows_of_head

_SCORED_AT_ONCE = 256  # positions whose logits are of full width
_PROVEN = 48  # tokens of the text that the logits are proven on
NOT_SCORED = -1


class Features(NamedTuple):
    """What training needs of each token but the last of each sequence.

    Attributes:
        states: the three hidden states side by side, [batch, length, 3d].
        last: what the target's head reads, [batch, length, d].
        top: the likeliest next token, int32 [batch, length]; -1 where it was not asked for.
    """

    states: torch.Tensor
    last: torch.Tensor
    top: torch.Tensor


class TargetReader:
    """Reads a target for training drafts.

    Args:
        target: the target, loaded, in any dtype, on any device.
        layer_ids: which of its hidden states are read.
        dtype: that features are kept in.

    Raises:
        ValueError: if it has no head that could be told apart.
    """

    def __init__(self, target: Any, layer_ids: Sequence[int], dtype: torch.dtype) -> None:
        self.target = unwrap(target)
        self.layer_ids = [int(layer) for layer in layer_ids]
        self.dtype = dtype
        self._head = self.target.get_output_embeddings()
        self._embeddings = self.target.get_input_embeddings()
        self._base = self.target.base_model
        if self._head is None or self._base is self.target:
            raise ValueError(
                f"{type(self.target).__name__} does not keep its head apart from the layers "
                "below it, which training needs: use a causal language model of Transformers"
            )

    @property
    def width(self) -> int:
        """V."""
        return int(self.target.config.get_text_config().vocab_size)

    def embed(self, ids: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return the target's embeddings of token ids, [..., d], on `device`, without a gradient.

        Args:
            ids: int64, of any shape.
            device: where they are used.
        """
        with torch.no_grad():
            place = self._embeddings.weight.device
            embeds: torch.Tensor = self._embeddings(ids.to(place))
        return embeds.to(device)

    def read(self, ids: torch.Tensor, lengths: torch.Tensor, scored: torch.Tensor) -> Features:
        """Run the target over texts, padded on the right, and return its features.

        Args:
            ids: int64 [batch, length].
            lengths: of the texts, int64 [batch].
            scored: where the likeliest next token is asked for, bool [batch, length].
        """
        place = self.target.device
        ids, scored = ids.to(place), scored.to(place)
        real = torch.arange(ids.shape[1], device=place) < lengths.to(place)[:, None]
        with self._undisturbed():
            states, last = self._run(ids, real)
            top = torch.full(ids.shape, NOT_SCORED, dtype=torch.int32, device=last.device)
            scored = scored.to(last.device)
            top[scored] = self._likeliest(last[scored])
        return Features(states.to(self.dtype), last.to(self.dtype), top)

    def prove(self, ids: Sequence[int], teacher: Teacher) -> None:
        """Prove on a text that the teacher's logits are the target's own.

        Args:
            ids: the text; its first tokens are taken.
            teacher: of this target.

        Raises:
            ValueError: if they are not.
        """
        text = torch.tensor([list(ids)[:_PROVEN]], device=self.target.device)
        with self._undisturbed():
            _, last = self._run(text, torch.ones_like(text, dtype=torch.bool))
            own = self.target(text, use_cache=False).logits[0].float()
            top = self._likeliest(last[0])
        ours = teacher.logits(last[0].to(teacher.weight.device)).float().to(own.device)
        kept = own[:, teacher.kept_ids.to(own.device)]
        room = max(float(own.abs().max()), 1.0) * _rounding(last.dtype)
        apart = float((ours - kept).abs().max())
        missed = float((own.amax(-1) - own.gather(1, top.long()[:, None])[:, 0]).max())
        if not (apart <= room and missed <= room):
            raise ValueError(
                f"the logits of {type(self.target).__name__} are not its head's rows times what "
                f"its last layer gives (they differ by {max(apart, missed):.3g}, {room:.3g} would "
                "be rounding), so that a draft would learn something else: this target's drafts "
                "cannot be trained"
            )

    def _run(self, ids: torch.Tensor, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self._base(
            input_ids=ids,
            attention_mask=real.long(),
            output_hidden_states=self.layer_ids,
            use_cache=False,
        )
        last = found.last_hidden_state
        states = [found.hidden_states[layer].to(last.device) for layer in self.layer_ids]
        return torch.cat(states, dim=-1), last

    def _likeliest(self, last: torch.Tensor) -> torch.Tensor:
        # Scaling and capping keep the order, so the head alone tells the likeliest.
        parts = [
            self._head(part)[..., : self.width].argmax(-1) for part in last.split(_SCORED_AT_ONCE)
        ]
        return torch.cat([*parts, last.new_empty(0, dtype=torch.long)]).to(torch.int32)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Run the target without gradients, dropout or anyone's autocast."""
        training = self.target.training
        kind = self.target.device.type
        self.target.eval()
        try:
            with torch.no_grad(), torch.autocast(kind, enabled=False):
                yield
        finally:
            self.target.train(training)


class Teacher:
    """The target's logits for the kept ids, from what its head reads.

    Args:
        target: the target, or a wrapper of it.
        kept_ids: int64 [k], ascending.
        device: where they are computed.

    Attributes:
        kept_ids: the same, on `device`.
        weight: the head's rows, [k, d].
        bias: [k], or None.
    """

    def __init__(self, target: Any, kept_ids: torch.Tensor, device: torch.device) -> None:
        inner = unwrap(target)
        rows = rows_of_head(inner, kept_ids.cpu())
        self.kept_ids = kept_ids.to(device)
        self.weight = rows["weight"].detach().to(device)
        bias = rows.get("bias")
        self.bias = None if bias is None else bias.detach().to(device)
        config = inner.config.get_text_config()
        self._cap = getattr(config, "final_logit_softcapping", None)
        self._scale = float(getattr(config, "logit_scale", None) or 1.0)
        self._scale /= float(getattr(config, "logits_scaling", None) or 1.0)

    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Return logits [..., k] of what the head reads, [..., d]."""
        with torch.no_grad(), torch.autocast(last.device.type, enabled=False):
            found = torch.nn.functional.linear(last.to(self.weight.dtype), self.weight, self.bias)
            if self._scale != 1.0:
                found = found * self._scale
            if self._cap:
                found = torch.tanh(found / self._cap) * self._cap
        return found


def _rounding(dtype: torch.dtype) -> float:
    """Return how far two ways to the same logits may lie apart, as a share of the largest."""
    return max(4 * float(torch.finfo(dtype).eps), 1e-5)
