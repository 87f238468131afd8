"""EAGLE-3 drafting, written out plainly and slowly, to compare the package with.

No cache, no packing, nothing of the package's own bodies: for every guess everything is computed
anew from the draft's weights by name and its config. What the target gives comes from one forward
of all the text so far.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu, softmax

Processors = Callable[[Tensor, Tensor], Tensor]


class EagleReference:
    """What an EAGLE-3 draft must say after a text.

    Args:
        draft: a trimmed draft with an EAGLE-3 body.
        target: the model whose states and embeddings are read, in float32.
    """

    def __init__(self, draft: Any, target: Any) -> None:
        self.target = target
        self.layers = draft.config.target_layer_ids
        self.config = draft.config.body_config
        self.width = draft.config.vocab_size
        state = {name: value.detach().float() for name, value in draft.state_dict().items()}
        kept = state.pop("kept_ids", torch.arange(self.width))
        self.kept = kept.long()
        self.weights = {name.removeprefix("body."): value for name, value in state.items()}

    @torch.no_grad()
    def proposals(
        self, ids: Tensor, count: int, processors: Processors | None = None
    ) -> list[int]:
        """Return the ids that greedy drafting proposes.

        Args:
            ids: all real tokens so far, int64 [1, length], no padding among them.
            count: how many to propose.
            processors: of the call; what they forbid altogether ends the proposals.
        """
        if ids.shape[1] < 2:
            return []
        states, embeds = self.entries(ids)
        said: list[int] = []
        while len(said) < count:
            out = self.layer(embeds, states)[:, -1:]
            wide = torch.full((1, self.width), -torch.inf)
            wide[0, self.kept] = self.logits(out)[0, 0]
            if processors is not None:
                wide = processors(ids, wide)
            if bool(wide[0, self.kept].isneginf().all()):
                break
            token = self.kept[wide[:, self.kept].argmax(dim=-1)][:, None]
            said.append(int(token))
            ids = torch.cat([ids, token], dim=1)
            embeds = torch.cat([embeds, self.embed(token)], dim=1)
            states = torch.cat([states, out], dim=1)
        return said

    @torch.no_grad()
    def entries(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return fused states of tokens t and embeddings of tokens t + 1, [1, length - 1, d]."""
        found = self.target(ids[:, :-1], output_hidden_states=True).hidden_states
        features = torch.cat([found[layer].float() for layer in self.layers], dim=-1)
        return linear(features, self.weights["fc.weight"]), self.embed(ids[:, 1:])

    def embed(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.target.get_input_embeddings()(ids)
        return vectors.float()

    def layer(self, embeds: Tensor, states: Tensor) -> Tensor:
        """Return the next states, given embeddings and states, [1, length, d] each."""
        both = [self.norm("midlayer.input_layernorm", embeds)]
        both.append(self.norm("midlayer.hidden_norm", states))
        states = states + self.attention(torch.cat(both, dim=-1))
        inside = self.norm("midlayer.post_attention_layernorm", states)
        gate = silu(self.project("mlp.gate_proj", inside))
        return states + self.project("mlp.down_proj", gate * self.project("mlp.up_proj", inside))

    def attention(self, both: Tensor) -> Tensor:
        length, width = both.shape[1], self.config.head_dim
        queries, keys, values = (
            self.project(f"self_attn.{name}_proj", both).view(length, -1, width).transpose(0, 1)
            for name in "qkv"
        )
        queries, keys = self.turn(queries), self.turn(keys)
        found = []
        for head in range(len(queries)):
            shared = head * len(keys) // len(queries)
            scores = queries[head] @ keys[shared].T / width**0.5
            scores += torch.full_like(scores, -torch.inf).triu(1)
            found.append(softmax(scores, dim=-1) @ values[shared])
        return self.project("self_attn.o_proj", torch.cat(found, dim=-1)[None])

    def turn(self, heads: Tensor) -> Tensor:
        """Turn pairs (i, i + h / 2) of each head's numbers [heads, length, h] by position."""
        rotary = self.config.rope_parameters
        assert rotary["rope_type"] == "default"
        half = heads.shape[-1] // 2
        speeds = rotary["rope_theta"] ** -(torch.arange(half) / half)
        angles = torch.arange(heads.shape[1])[:, None] * speeds
        left, right = heads[..., :half], heads[..., half:]
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1)

    def norm(self, name: str, x: Tensor) -> Tensor:
        size = (x.square().mean(dim=-1, keepdim=True) + self.config.rms_norm_eps).rsqrt()
        return x * size * self.weights[f"{name}.weight"]

    def project(self, name: str, x: Tensor) -> Tensor:
        name = f"midlayer.{name}"
        return linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def logits(self, states: Tensor) -> Tensor:
        """Return logits in draft space of states [1, length, d]."""
        head = self.weights["lm_head.weight"], self.weights.get("lm_head.bias")
        return linear(self.norm("norm", states), *head)
