"""One run of `generate` with an EAGLE-3 body: the target's real states in, guesses on top of them.

The entry at position t of the draft's cache was read from the target's states at t and the
embedding of token t+1. Guesses add entries that were read from the draft's own states instead;
they are taken back before the next round, so that what stays is of real states only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .eagle_body import EagleBody
from .eagle_step import Entries, PlainStep, is_plain

# Cosines and sines are computed for so many more positions at a time.
_POSITIONS = 256


class EagleSession:
    """The draft's side of one run of `generate`.

    Args:
        body: the draft's body.
        layer_ids: which of the target's hidden states are read (`hidden_states[i]`).
        embeddings: the target's own input embeddings, wherever they are.
        attention_mask: of the prompt, [1, length]; masked tokens are left out.
        all_states: whether the user wants all hidden states anyway.
    """

    requires_model_outputs = True

    def __init__(
        self,
        body: EagleBody,
        layer_ids: Sequence[int],
        embeddings: torch.nn.Module,
        attention_mask: torch.Tensor | None,
        all_states: bool = False,
    ) -> None:
        self.model_kwargs_overrides = {
            "output_hidden_states": True if all_states else list(layer_ids)
        }
        self._body = body
        self._device, self._dtype = body.device, body.dtype
        self._layer_ids = tuple(layer_ids)
        self._embeddings = embeddings
        padded = attention_mask is not None and not bool(attention_mask.all())
        self._mask = attention_mask.bool() if padded and attention_mask is not None else None
        self._packed = projections, inside = body.pack()
        attention = body.midlayer.self_attn
        self._cache = Entries(attention.key_heads, attention.head_dim, body.norm.weight)
        self._plain: PlainStep | None = None
        if projections is not None and inside is not None and is_plain(body):
            self._plain = PlainStep(body, (projections, inside), self._cache)
        self._prompt_is_read = False
        self._real = 0  # entries that were read from real states
        self._state: torch.Tensor | None = None
        self._rope: tuple[torch.Tensor, torch.Tensor] | None = None

    def catch_up(
        self, input_ids: torch.Tensor, *, model_outputs: Any = None, **_: Any
    ) -> torch.Tensor | None:
        """Follow the target: drop the guesses, read the states of its last forward.

        Args:
            input_ids: all real tokens so far, int64 [1, length]; the target has not read the last.
            model_outputs: of the target's last forward, with its hidden states; None before it.

        Returns:
            Logits of the next token in draft space, [1, k]; None as long as there are no states.

        Raises:
            ValueError: if the states asked for are not there.
        """
        if model_outputs is None:
            return None
        features = self._features(model_outputs)
        self._prompt_is_read = True
        if self._mask is not None:
            # As if the text had never held what is masked; what comes later never is.
            more = self._mask.new_ones(1, input_ids.shape[1] - self._mask.shape[1])
            input_ids = input_ids[torch.cat([self._mask, more], dim=1).to(input_ids.device)][None]
        self.forget(self._cache.length - self._real)
        new = input_ids.shape[1] - 1 - self._real
        if new == 0:  # all of the prompt is masked
            return None
        embeds = self._embed(input_ids[:, -new:])
        logits = self.read(embeds, target_hidden_states=features[:, :new])
        self._real += new
        return logits

    def step(self, token: torch.Tensor) -> torch.Tensor:
        """Read one guessed token, int64 [1, 1]; return the next token's logits, [1, k]."""
        return self.read(self._embed(token), state=self._state)

    def read(self, embeds: torch.Tensor, **source: torch.Tensor | None) -> torch.Tensor:
        """Read embeddings [1, n, d] with features or a state; return the last logits, [1, k]."""
        start, new = self._cache.length, embeds.shape[1]
        rope = self._turns(start, new)
        logits: torch.Tensor
        if new == 1 and self._plain is not None and self._as_it_is():
            logits, self._state = self._plain(embeds, rope, **source)
        else:
            read = self._body(
                embeds,
                cache=self._cache,
                logits_to_keep=1,
                rope=rope,
                packed=self._packed,
                **source,
            )
            logits, self._state = read.logits[:, -1], read.state[:, -1:]
        return logits

    def forget(self, entries: int) -> None:
        """Take the last entries back."""
        self._cache.forget(entries)

    def _as_it_is(self) -> bool:
        """Say whether torch computes just what it is told: no gradients, no autocast."""
        return not (torch.is_grad_enabled() or torch.is_autocast_enabled(self._device.type))

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        table = next(self._embeddings.parameters(), None)
        if table is not None and not table.is_meta:
            # Where the weight is elsewhere for the time being, the module moves its input itself.
            tokens = tokens.to(table.device)
        embeds: torch.Tensor = self._embeddings(tokens)
        return embeds.to(self._device, self._dtype)

    def _turns(self, start: int, new: int) -> tuple[torch.Tensor, torch.Tensor]:
        end = start + new
        if self._rope is None or self._rope[0].shape[2] < end:
            positions = torch.arange(end + _POSITIONS, device=self._device)[None]
            self._rope = self._body.rope(positions, self._body.norm.weight)
        cosines, sines = self._rope
        return cosines.narrow(2, start, new), sines.narrow(2, start, new)

    def _features(self, model_outputs: Any) -> torch.Tensor:
        states = getattr(model_outputs, "hidden_states", None) or ()
        asked = [states[layer] if layer < len(states) else None for layer in self._layer_ids]
        read = [state for state in asked if state is not None and state.ndim == 3]
        if len(read) < len(asked):
            shapes = [None if state is None else list(state.shape) for state in asked]
            raise ValueError(
                f"the draft reads the target's hidden_states{list(self._layer_ids)}, [1, length, "
                f"d] each, but of its {len(states)} states these are {shapes}: the target must "
                "answer output_hidden_states as most of Transformers' models do; use a draft with "
                "a standalone body (from_draft_model) for it"
            )
        side_by_side = [state.to(self._device, self._dtype) for state in read]
        features = torch.cat(side_by_side, dim=-1)
        if self._mask is None or self._prompt_is_read:
            return features
        return features[self._mask.to(features.device)][None]
