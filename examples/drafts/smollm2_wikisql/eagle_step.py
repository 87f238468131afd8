"""One guessed token through an EAGLE-3 body, by its bare weights; and what a session remembers.

The matrix products of one token take so little time that everything between them counts: calls of
modules, views, and above all different kernels, whose code is no longer in the processor's caches
after each product. Here the arithmetic of `EagleBody.forward` is done for one token on a CPU with
few of them. It is a short cut only: a body that is elsewhere or not plain (adapted, quantised,
hooked, offloaded, compiled) takes its own way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as torch_module
from transformers.models.llama.modeling_llama import LlamaMLP

from .eagle_body import EagleAttention, EagleBody, EagleLayer, ExactRotaryEmbedding
from .packed_rows import Packed

_PLAIN = {EagleBody, EagleLayer, EagleAttention, ExactRotaryEmbedding, LlamaMLP}
_PLAIN |= {nn.Linear, nn.RMSNorm}
_ROOM = 256  # entries at first


class Entries:
    """Keys and values of one text, as one tensor that grows by doubling.

    A Transformers cache puts everything into new memory for every token that comes. What `forget`
    takes back is written over by what comes next.

    Args:
        heads: of keys.
        width: numbers a head.
        like: a tensor of the wanted dtype and device.
    """

    def __init__(self, heads: int, width: int, like: torch.Tensor) -> None:
        self.length = 0
        self._both = self._room(heads, _ROOM, width, like)

    @staticmethod
    def _room(heads: int, entries: int, width: int, like: torch.Tensor) -> torch.Tensor:
        # What is made inside somebody's inference_mode could not be written to outside of it.
        with torch.inference_mode(False):
            return torch.empty(2, 1, heads, entries, width, dtype=like.dtype, device=like.device)

    @property
    def keys(self) -> torch.Tensor:
        """Of all entries, [1, heads, length, width]."""
        return self._both[0, :, :, : self.length]

    @property
    def values(self) -> torch.Tensor:
        """Of all entries, [1, heads, length, width]."""
        return self._both[1, :, :, : self.length]

    def get_seq_length(self) -> int:
        """Return how many entries there are, by the name that Transformers' caches use."""
        return self.length

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, _layer: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add entries, [1, heads, n, width] each; return all, as Transformers' caches do."""
        return self.add(torch.stack([keys, values]).detach())

    def add(self, both: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add keys and values, [2, 1, heads, n, width]; return all keys and all values."""
        start, new = self.length, both.shape[3]
        end = start + new
        if end > self._both.shape[3]:
            _, _, heads, room, width = self._both.shape
            larger = self._room(heads, max(end, 2 * room), width, self._both)
            larger[:, :, :, :start] = self._both[:, :, :, :start]
            self._both = larger
        self._both.narrow(3, start, new).copy_(both)
        self.length = end
        keys, values = self._both.narrow(3, 0, end).unbind(0)
        return keys, values

    def forget(self, entries: int) -> None:
        """Take the last entries back."""
        self.length -= entries


class PlainStep:
    """The pass of one token through a body's bare weights.

    Args:
        body: for which `is_plain` holds.
        packed: what its `pack` gave.
        entries: what was read before, and what the tokens are added to.
    """

    def __init__(self, body: EagleBody, packed: tuple[Packed, Packed], entries: Entries) -> None:
        layer, attention, mlp = body.midlayer, body.midlayer.self_attn, body.midlayer.mlp
        self._entries = entries
        self._fuse, self._head = body.fc.weight, (body.lm_head.weight, body.lm_head.bias)
        self._project, self._inside = packed
        self._gather, self._down = _turned_round(attention.o_proj), _turned_round(mlp.down_proj)
        self._act = mlp.act_fn.forward
        self._embed_norm, self._state_norm = layer.input_layernorm.weight, layer.hidden_norm.weight
        self._mlp_norm, self._last_norm = layer.post_attention_layernorm.weight, body.norm.weight
        self._eps, self._half_head = layer.norm_eps, attention.head_dim // 2
        half = torch.finfo(body.dtype).bits < 32
        self._exact = torch.float32 if half else body.dtype
        with torch.inference_mode(False), torch.no_grad():
            width = body.config.hidden_size
            self._zero = self._fuse.new_zeros(1, width)
            # Results that are gone when the next token comes, and the parts of them that are read.
            self._both = self._fuse.new_empty(1, 2 * width)
            self._read = self._both.chunk(2, dim=-1)
            self._projected = self._fuse.new_empty(1, len(self._project.weight))
            heads = self._projected.view(1, -1, 1, attention.head_dim)
            self._turned = heads[:, : attention.heads + attention.key_heads]
            shared = (1, attention.key_heads, -1, attention.head_dim)
            self._queries = heads[:, : attention.heads].view(shared)
            self._new = heads[0, attention.heads :].view(2, *shared)
            self._gate_up = self._fuse.new_empty(1, len(self._inside.weight))
            self._gate, self._up = self._gate_up.chunk(2, dim=-1)

    def __call__(
        self,
        embeds: torch.Tensor,
        rope: tuple[torch.Tensor, torch.Tensor],
        target_hidden_states: Any = None,
        state: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Read one token, not while gradients are recorded.

        Args:
            embeds: the target's embedding of the token, [1, 1, d].
            rope: what `EagleBody.rope` gave for its position.
            target_hidden_states: the target's three states side by side, [1, 1, 3d].
            state: instead of them, what an earlier pass gave, [1, 1, d].

        Returns:
            Logits of the next token in draft space, [1, k], and the state, [1, 1, d].
        """
        if state is None:
            state = functional.linear(target_hidden_states, self._fuse)
        state = state[0]
        self._normed(embeds[0], self._embed_norm, self._read[0])
        self._normed(state, self._state_norm, self._read[1])
        _product(self._both, self._project, self._projected)
        swapped = self._turned.roll(self._half_head, dims=-1)
        self._turned.mul_(rope[0]).addcmul_(swapped, rope[1])
        keys, values = self._entries.add(self._new)
        found = functional.scaled_dot_product_attention(self._queries, keys, values)
        state = _added(state, found.reshape(1, -1), self._gather)
        _product(self._normed(state, self._mlp_norm), self._inside, self._gate_up)
        state = _added(state, self._act(self._gate).mul_(self._up), self._down)
        # In memory of its own: who drafts keeps the logits of several steps.
        logits = functional.linear(self._normed(state, self._last_norm), *self._head)
        return logits, state[None]

    def _normed(
        self, numbers: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return what `eagle_body.normed` does, for one row, with two kernels instead of five."""
        size = torch.linalg.vector_norm(numbers, dtype=self._exact).item()
        scale = (size * size / numbers.shape[1] + self._eps) ** -0.5
        return torch.addcmul(self._zero, numbers, weight, value=scale, out=out)


def is_plain(body: EagleBody) -> bool:
    """Say whether a body lies on the CPU and does just what its weights say."""
    act = body.midlayer.mlp.act_fn
    for each in body.modules():
        if each is not act and type(each) not in _PLAIN:
            return False
        changed = each._forward_hooks or each._forward_pre_hooks or each._compiled_call_impl
        if changed or "forward" in vars(each):
            return False
    weights: list[Any] = list(body.parameters())
    alike = {(type(each), each.dtype, each.device.type, each.is_inference()) for each in weights}
    return (
        alike == {(nn.Parameter, body.dtype, "cpu", False)}
        and body.midlayer.norm_eps > 0
        and not torch_module._has_any_global_hook()
    )


def _turned_round(linear: nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    return linear.weight.detach().t(), None if linear.bias is None else linear.bias.detach()


def _product(numbers: torch.Tensor, packed: Packed, out: torch.Tensor) -> None:
    if packed.bias is None:
        torch.mm(numbers, packed.weight.t(), out=out)
    else:
        torch.addmm(packed.bias, numbers, packed.weight.t(), out=out)


def _added(
    state: torch.Tensor, numbers: torch.Tensor, linear: tuple[torch.Tensor, torch.Tensor | None]
) -> torch.Tensor:
    """Return the state and the product with numbers, in one go."""
    weight, bias = linear
    state = torch.addmm(state, numbers, weight)
    return state if bias is None else state.add_(bias)
