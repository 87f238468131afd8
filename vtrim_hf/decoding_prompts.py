"""Prompts as people hold them, made into the inputs of one `generate` call each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .kept_ids import WIDEST


def prepare_prompts(
    prompts: Iterable[Any],
    tokenizer: Any = None,
    *,
    raw: bool = False,
    device: torch.device | str = "cpu",
    max_positions: int | None = None,
    max_new_tokens: int = 0,
) -> list[dict[str, torch.Tensor]]:
    """Return the model inputs of every prompt.

    Args:
        prompts: each one a text, a conversation (list of messages with `role` and `content`),
            token ids (list of int, or int tensor [length] or [1, length]), or a mapping of model
            inputs. A text is one user message when the tokenizer has a chat template.
        tokenizer: needed for texts and conversations.
        raw: take texts as they are, without the chat template.
        device: where the tensors go.
        max_positions: positions that the target has, None when it has no such limit.
        max_new_tokens: positions that must stay free behind the prompt.

    Returns:
        One mapping a prompt, with `input_ids` int64 [1, length] and `attention_mask`.

    Raises:
        TypeError: if a prompt is of another kind.
        ValueError: if there is no prompt, one is empty, holds several texts, does not fit in
            `max_positions`, or needs a tokenizer that is not given.
    """
    if isinstance(prompts, str | Mapping):
        raise TypeError(
            f"prompts must be a list of prompts, got one {type(prompts).__name__}: "
            "put it in a list, [prompt]"
        )
    inputs = []
    for index, prompt in enumerate(prompts):
        where = f"prompt {index}"
        one = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in _inputs_of(prompt, tokenizer, raw, where).items()
        }
        _check(one["input_ids"], where, max_positions, max_new_tokens)
        one.setdefault("attention_mask", torch.ones_like(one["input_ids"]))
        inputs.append(one)
    if not inputs:
        raise ValueError("prompts must hold at least one prompt, got none: pass a non-empty list")
    return inputs


def prompt_digest(input_ids: torch.Tensor) -> str:
    """Return 16 hex digits that name a prompt by its ids."""
    ids = ",".join(map(str, input_ids[0].tolist()))
    return hashlib.sha256(ids.encode()).hexdigest()[:16]


def _inputs_of(prompt: Any, tokenizer: Any, raw: bool, where: str) -> dict[str, Any]:
    if isinstance(prompt, str):
        _need_tokenizer(tokenizer, where, "a text")
        if raw or not getattr(tokenizer, "chat_template", None):
            return dict(tokenizer(prompt, return_tensors="pt"))
        return _render([{"role": "user", "content": prompt}], tokenizer)
    if isinstance(prompt, torch.Tensor):
        return {"input_ids": _as_row(prompt, where)}
    if isinstance(prompt, Mapping):
        if "input_ids" not in prompt:
            raise ValueError(
                f"{where} is a mapping and must hold input_ids, got the keys {sorted(prompt)}: a "
                "conversation is a list of messages, so pass a list of such lists"
            )
        return {**prompt, "input_ids": _as_row(torch.as_tensor(prompt["input_ids"]), where)}
    if isinstance(prompt, list | tuple):
        if all(isinstance(message, Mapping) for message in prompt) and prompt:
            _need_tokenizer(tokenizer, where, "a conversation")
            return _render(list(prompt), tokenizer)
        if all(isinstance(index, int) for index in prompt):
            wrong = next((index for index in prompt if abs(index) > WIDEST), None)
            if wrong is not None:  # torch may have no number for it
                raise ValueError(
                    f"{where} must hold token ids, got {wrong}: encode it with the target's "
                    "tokenizer"
                )
            return {"input_ids": _as_row(torch.tensor(prompt, dtype=torch.long), where)}
    raise TypeError(
        f"{where} must be a text, a list of messages, token ids or a mapping of model inputs, got "
        f"{type(prompt).__name__}"
    )


def _render(messages: list[Any], tokenizer: Any) -> dict[str, Any]:
    return dict(
        tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    )


def _need_tokenizer(tokenizer: Any, where: str, what: str) -> None:
    if tokenizer is None:
        raise ValueError(f"{where} is {what} and there is no tokenizer: pass tokenizer=")


def _as_row(ids: torch.Tensor, where: str) -> torch.Tensor:
    if ids.is_floating_point() or ids.dim() not in (1, 2):
        raise TypeError(
            f"{where} must be integer ids of shape [length] or [1, length], got "
            f"{ids.dtype} {list(ids.shape)}"
        )
    return ids if ids.dim() == 2 else ids[None]


def _check(ids: torch.Tensor, where: str, max_positions: int | None, max_new_tokens: int) -> None:
    if ids.shape[0] != 1:
        raise ValueError(
            f"{where} holds {ids.shape[0]} texts, but assisted decoding takes one at a time: pass "
            "each row as its own prompt"
        )
    if ids.shape[1] == 0:
        raise ValueError(f"{where} is empty: a prompt needs at least one token")
    if max_positions is not None and ids.shape[1] + max_new_tokens > max_positions:
        raise ValueError(
            f"{where} has {ids.shape[1]} tokens, and with max_new_tokens={max_new_tokens} that is "
            f"more than the target's {max_positions} positions: shorten one of them"
        )
