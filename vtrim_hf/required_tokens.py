"""Ids that a draft must be able to say whatever the data counted.

A cut by frequency loses tokens that are rare in any data and needed in every answer: the one that
ends a turn, the tags around a tool call, and the single bytes that spell whatever has no piece of
its own. They are collected here, listed by reason, and are part of k like any other id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, SupportsIndex

from .template_probe import probe_chat_template

# Why an id is kept: the keys of `RequiredTokens.by_reason`.
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "tokenizer_eos": "the tokenizer's end-of-text token",
        "generation_config_eos": "an end-of-text id of the generation config",
        "end_of_turn": "what the chat template ends an assistant turn with",
        "assistant_markup": "what the chat template writes into assistant turns, tags included",
        "added_token": "an added or special token that an assistant turn can hold",
        "byte_piece": "a single byte, to spell what has no piece of its own",
        "user_list": "asked for by the caller",
    }
)

# Why an added token is not kept: the keys of `RequiredTokens.left_out`.
LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "other_media": "stands for an image, a video or sound",
        "fill_in_the_middle": "marks the parts of a fill-in-the-middle prompt",
        "reserved": "reserved or unused",
        "filler": "the padding, unknown, mask, separator or classification token",
        "other_roles": "appears in the turns of others only",
        "no_token": "lies beyond the tokenizer or the target's width",
    }
)

_MEDIA = re.compile(r"image|img|vision|visual|video|audio|speech|voice", re.IGNORECASE)
_FILL_IN = re.compile(
    r"(?i:fim(?![a-z])|(?<![a-z])(prefix|suffix|middle|infill)(?![a-z]))|^[\W_]*(PRE|SUF|MID)[\W_]*$"
)
_RESERVED = re.compile(
    r"reserved|unused|extra_?id|place_?holder|dummy|^[\W_]*(special|control|pad|madeup\w*?)_?\d+[\W_]*$",
    re.IGNORECASE,
)
# In doubt a token is kept, and names such as these are more than doubt.
_SAYABLE = re.compile(
    r"tool|func|call|think|thought|reason|python|answer|channel|message|end|eot|eom|eos|stop",
    re.IGNORECASE,
)
_ROLE = re.compile(r"^[\W_]*(user|human|system|sys|developer|inst|prompter)[\W_]*$", re.IGNORECASE)
_FILLERS = ("pad_token_id", "unk_token_id", "mask_token_id", "sep_token_id", "cls_token_id")

# Texts whose characters have no piece of their own in any known tokenizer: private use and the
# farthest planes. The pieces that they fall into show how the tokenizer spells bytes.
_UNSEEN_TEXTS = ("\U000f1234", "\U0010fabc", "\U000e0123", "\ue9b7")


@dataclass(frozen=True)
class RequiredTokens:
    """Required ids, ascending, with the reasons for each.

    Iterating gives the ids, so that it can be passed wherever ids are asked for.

    Attributes:
        by_reason: ids by the keys of `REASONS`, each ascending; one id may have several reasons.
        left_out: ids that were considered and not kept, by the keys of `LEFT_OUT`.
    """

    by_reason: Mapping[str, tuple[int, ...]]
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """All required ids, ascending, each once."""
        return tuple(sorted({index for ids in self.by_reason.values() for index in ids}))

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, token_id: object) -> bool:
        return token_id in self._as_set

    @cached_property
    def _as_set(self) -> frozenset[int]:
        return frozenset(self.ids)

    def reasons(self, token_id: int) -> tuple[str, ...]:
        """Return why an id is kept, keys of `REASONS`; empty if it is not."""
        return tuple(reason for reason, ids in self.by_reason.items() if token_id in ids)

    def without(self, *reasons: str) -> RequiredTokens:
        """Return what stays required when the given reasons no longer count.

        Raises:
            ValueError: for a reason that is none of `REASONS`.
        """
        for reason in reasons:
            if reason not in REASONS:
                raise ValueError(f"a reason is one of {', '.join(REASONS)}, got {reason!r}")
        kept = {reason: ids for reason, ids in self.by_reason.items() if reason not in reasons}
        return RequiredTokens(kept, self.left_out)


def required_token_ids(
    tokenizer: Any,
    generation_config: Any = None,
    *,
    extra: Iterable[SupportsIndex | str] | str = (),
    vocab_size: int | None = None,
) -> RequiredTokens:
    """Collect the ids that a draft for this tokenizer must be able to say.

    These are every end-of-text id (of the tokenizer, of the generation config, of the chat
    template), whatever the chat template itself writes into an assistant turn (tool calls and
    thinking included), the added and special tokens that an assistant turn can hold, the 256
    byte-level pieces or the byte-fallback pieces, and the caller's own list.

    An added token is left out only if its name says that it stands for other media, for a
    fill-in-the-middle prompt or for nothing yet, if it is the padding or unknown token, or if the
    chat template writes it into the turns of others alone. In doubt it is kept: a row of the head
    costs next to nothing, a missing end of turn costs the end of every answer. Ids at or above
    `len(tokenizer)` that are no added tokens are rows of padding and never kept.

    Args:
        tokenizer: the target's tokenizer.
        generation_config: the target's `GenerationConfig` (or any object or mapping with an
            `eos_token_id`), whose ids may differ from the tokenizer's.
        extra: ids, or texts all pieces of which are kept.
        vocab_size: the target's width V; ids beyond it, which it cannot say, are left out.

    Returns:
        The ids, iterable in ascending order and listed by reason.

    Raises:
        ValueError: for an id in `extra` that is no token, or a text that has no pieces.
        TypeError: for anything else in `extra`.

    Example:
        ```python
        required = required_token_ids(tokenizer, target.generation_config, extra=["SELECT", 198])
        required.reasons(tokenizer.eos_token_id)
        ```
    """
    added = _added_tokens(tokenizer)
    width = len(tokenizer)
    found: dict[str, set[int]] = {
        "tokenizer_eos": _as_ids(getattr(tokenizer, "eos_token_id", None)),
        "generation_config_eos": _as_ids(_eos_of(generation_config)),
    }
    probe = probe_chat_template(tokenizer, frozenset(added))
    found["end_of_turn"] = set(probe.end_of_turn)
    found["assistant_markup"] = set(probe.markup)
    found["byte_piece"] = byte_pieces(tokenizer)

    no_token: set[int] = set()
    for ids in found.values():
        beyond = {i for i in ids if not _is_token(i, width, added, vocab_size)}
        no_token |= beyond
        ids -= beyond
    found["user_list"] = _own_list(extra, tokenizer, width, added, vocab_size)

    said = set().union(*found.values(), probe.in_assistant_turns)
    left_out: dict[str, set[int]] = {}
    fillers = {i for name in _FILLERS for i in _as_ids(getattr(tokenizer, name, None))}
    found["added_token"] = set()
    for token_id, content in added.items():
        if vocab_size is not None and token_id >= vocab_size:
            no_token.add(token_id)
            continue
        reason = _reason_against(token_id, content, fillers, probe.in_other_turns)
        if token_id in said or reason is None:
            found["added_token"].add(token_id)
        else:
            left_out.setdefault(reason, set()).add(token_id)
    if no_token:
        left_out["no_token"] = no_token
    return RequiredTokens(
        by_reason={reason: tuple(sorted(found[reason])) for reason in REASONS if found[reason]},
        left_out={key: tuple(sorted(left_out[key])) for key in LEFT_OUT if key in left_out},
    )


def byte_pieces(tokenizer: Any) -> set[int]:
    """Find the ids of the pieces that stand for single bytes.

    What the tokenizer makes of characters that no vocabulary holds shows whether it has any:
    byte-level tokenizers spell them in their own alphabet, those with byte fallback in `<0x..>`
    pieces, and the rest call the character unknown.

    Returns:
        Up to 256 ids: a tokenizer that was trained without some bytes lacks their pieces.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    unknown = getattr(tokenizer, "unk_token", None)
    letters = frozenset(ByteLevel.alphabet())
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    for text in _UNSEEN_TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        pieces = [p for p in tokenizer.convert_ids_to_tokens(ids) if p not in (unknown, "▁")]
        if not pieces or not all(isinstance(piece, str) for piece in pieces):
            continue
        if all(re.fullmatch("▁?<0x[0-9A-F]{2}>", piece) for piece in pieces):
            names = (f"<0x{byte:02X}>" for byte in range(256))
            return {vocabulary[name] for name in names if name in vocabulary}
        # The letters of bytes from 128 on lie outside ASCII, as a piece such as "[UNK]" does not.
        if all(letter in letters and ord(letter) > 127 for p in pieces for letter in p):
            return {vocabulary[letter] for letter in letters if letter in vocabulary}
    return set()


def _reason_against(
    token_id: int, content: str, fillers: set[int], in_other_turns: frozenset[int]
) -> str | None:
    """Say why an added token should not be kept unless an assistant turn shows it, or None."""
    name = content.replace("▁", "_").replace("｜", "|")  # noqa: RUF001 - DeepSeek's own bars
    for pattern, reason in (
        (_MEDIA, "other_media"),
        (_FILL_IN, "fill_in_the_middle"),
        (_RESERVED, "reserved"),
    ):
        if pattern.search(name):
            return reason
    if _SAYABLE.search(name):
        return None
    if token_id in fillers:
        return "filler"
    if token_id in in_other_turns or _ROLE.search(name):
        return "other_roles"
    return None


def _added_tokens(tokenizer: Any) -> dict[int, str]:
    """Return the added and special tokens, id to content."""
    added = {int(i): str(token) for i, token in tokenizer.added_tokens_decoder.items()}
    for i, content in zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True):
        added.setdefault(int(i), str(content))
    return added


def _is_token(token_id: int, width: int, added: Mapping[int, str], vocab_size: int | None) -> bool:
    sayable = vocab_size is None or token_id < vocab_size
    return sayable and (0 <= token_id < width or token_id in added)


def _own_list(
    extra: Iterable[SupportsIndex | str] | str,
    tokenizer: Any,
    width: int,
    added: Mapping[int, str],
    vocab_size: int | None,
) -> set[int]:
    ids: set[int] = set()
    for item in [extra] if isinstance(extra, str) else extra:
        if isinstance(item, str):
            pieces = set(tokenizer.encode(item, add_special_tokens=False))
            if not pieces:
                raise ValueError(f"a text in extra must have pieces to keep, got {item!r}")
        elif hasattr(item, "__index__") and not isinstance(item, bool):
            pieces = {item.__index__()}
        else:
            raise TypeError(
                f"extra holds token ids and texts, got {item!r} of type {type(item).__name__}"
            )
        wrong = sorted(i for i in pieces if not _is_token(i, width, added, vocab_size))
        if wrong:
            limit = min(width, vocab_size or width)
            raise ValueError(
                f"ids in extra must be tokens, in [0, {limit}) or added ones, got {wrong[0]}: "
                "ids from there on are rows of padding that the target never says"
            )
        ids |= pieces
    return ids


def _eos_of(generation_config: Any) -> Any:
    if isinstance(generation_config, Mapping):
        return generation_config.get("eos_token_id")
    return getattr(generation_config, "eos_token_id", None)


def _as_ids(value: Any) -> set[int]:
    """Read an id field, which may be None, an int, a list or a tensor."""
    if value is None:
        return set()
    if hasattr(value, "tolist"):
        value = value.tolist()
    return {int(value)} if isinstance(value, int) else {int(item) for item in value}
