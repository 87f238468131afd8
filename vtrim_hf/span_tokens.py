"""From marked text to token ids: by offsets in general, and a short way that is proven to be the
same.

A tokenizer takes added tokens out of the text before anything else, and what lies between two of
them is tokenised by itself. A turn that begins shortly behind such a token and ends in one can
therefore be tokenised without the rest of the conversation, with the same result. `_Borders` holds
the conditions; wherever one fails, the whole text is tokenised and offsets decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .chat_template import common_length

Span = tuple[int, int]
Piece = tuple[str, Sequence[Span], str | None]
"""A text, the ranges that are wanted of it, and the header before its only one, or None."""

_HEADER_REACH = 96  # characters in which a turn's header must begin for the short way
_KEPT_HEADERS = 1024


class SpanTokenizer:
    """Tokenises rendered texts and picks the tokens of given character ranges.

    Args:
        tokenizer: a Transformers tokenizer. Without a `tokenizers` backend there are no offsets,
            and the ids of a range are those by which the text up to its end differs from the text
            up to its start.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._backend: Any = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        self._borders = _Borders(tokenizer)
        self._headers: dict[str, list[int]] = {}

    def encode(self, text: str, spans: Sequence[Span]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenise a text.

        Returns:
            int64 [length] ids, and bool [length], true for tokens with a character inside a span.
        """
        if self._backend is None:
            return self._encode_by_difference(text, spans)
        with self.untruncated():
            encoding = self._backend.encode(text, add_special_tokens=False)
        return np.asarray(encoding.ids, dtype=np.int64), _overlapping(encoding.offsets, spans)

    def pieces(self, text: str, spans: Sequence[Span]) -> list[Piece]:
        """Cut out what must be tokenised to know the ids inside the ranges."""
        if self._backend is None:
            return [(text, spans, None)]
        cuts: list[Piece] = []
        before = 0
        for start, end in spans:
            cut = self._borders.last_before(text, start)
            ends_well = end == len(text) or self._borders.closes(text, end)
            if cut is None or cut < before or not ends_well:
                return [(text, spans, None)]
            cuts.append((text[cut:end], ((start - cut, end - cut),), text[cut:start]))
            before = end
        return cuts

    def encode_pieces(self, pieces: Sequence[Piece]) -> list[Any]:
        """Tokenise pieces at once; with a backend, other threads may run meanwhile."""
        if self._backend is None:
            return [self.encode(text, spans) for text, spans, _ in pieces]
        with self.untruncated():
            encodings: list[Any] = self._backend.encode_batch_fast(
                [piece[0] for piece in pieces], add_special_tokens=False
            )
        return encodings

    def piece_ids(self, piece: Piece, encoded: Any) -> list[int]:
        """Pick the ids inside a piece's ranges."""
        text, spans, header = piece
        if self._backend is None:
            ids_of_text, mask = encoded
        else:
            if header is not None:
                ids: list[int] = encoded.ids
                before = self._header_ids(header)
                # If the header's own tokens come first, none of them reaches into the turn.
                if ids[: len(before)] == before:
                    return ids[len(before) :]
            ids_of_text, mask = self.encode(text, spans)
        inside: list[int] = ids_of_text[mask].tolist()
        return inside

    @contextmanager
    def untruncated(self) -> Iterator[None]:
        """Switch truncation and padding off, which an earlier call may have left on."""
        backend = self._backend
        truncation = padding = None
        if backend is not None:
            truncation, padding = backend.truncation, backend.padding
        if truncation is not None:
            backend.no_truncation()
        if padding is not None:
            backend.no_padding()
        try:
            yield
        finally:
            if truncation is not None:
                backend.enable_truncation(**truncation)
            if padding is not None:
                backend.enable_padding(**padding)

    def _header_ids(self, header: str) -> list[int]:
        ids = self._headers.get(header)
        if ids is None:
            ids = self._backend.encode(header, add_special_tokens=False).ids
            if len(self._headers) < _KEPT_HEADERS:
                self._headers[header] = ids
        return ids

    def shared_whole_tokens(self, header: str, text: str) -> int:
        """Count the characters of the whole tokens of `header` that `text` begins with."""
        shared = common_length(header, text)
        if shared == len(header):
            return shared
        if self._backend is None:
            ends = self._borders.ends_in(header)
        else:
            with self.untruncated():
                encoding = self._backend.encode(header, add_special_tokens=False)
            ends = [end for _, end in encoding.offsets]
        return max((end for end in ends if end <= shared), default=0)

    def _encode_by_difference(
        self, text: str, spans: Sequence[Span]
    ) -> tuple[np.ndarray, np.ndarray]:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        mask = np.zeros(len(ids), dtype=bool)
        for start, end in spans:
            before = self._tokenizer.encode(text[:start], add_special_tokens=False)
            through = self._tokenizer.encode(text[:end], add_special_tokens=False)
            same = common_length(through, ids)
            mask[common_length(before, ids) : same + (same < len(through))] = True
        return np.asarray(ids, dtype=np.int64), mask


class _Borders:
    """Added tokens at which a text can be cut without changing the tokens on either side."""

    def __init__(self, tokenizer: Any) -> None:
        decoder = tokenizer.added_tokens_decoder
        self._all = [token.content for token in decoder.values() if token.content]
        # Split before the normalizer runs, wherever they stand: only these part a text for good.
        hard = [
            token.content
            for token in decoder.values()
            if token.special and not token.normalized and not token.single_word and token.content
        ]
        # A tokenizer told to read special tokens as text splits at none of them.
        backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        if backend is None or backend.encode_special_tokens:
            hard = []
        self._proven: dict[str, bool] = {}
        longest_first = sorted(hard, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._hard = frozenset(hard)
        self._lengths = sorted({len(token) for token in hard}, reverse=True)

    def last_before(self, text: str, position: int) -> int | None:
        """Find where the last such token before `position` begins, if that is near."""
        low = max(0, position - _HEADER_REACH)
        last = None
        for match in self._any.finditer(text, low, position):
            last = match
        if last is None or not self._stands_alone(last.group()):
            return None
        return last.start()

    def closes(self, text: str, end: int) -> bool:
        """Tell whether such a token ends at `end`."""
        for length in self._lengths:
            token = text[max(0, end - length) : end]
            if token in self._hard:
                return self._stands_alone(token)
        return False

    def ends_in(self, text: str) -> list[int]:
        """Where added tokens end in a text."""
        return [m.end() for token in self._all for m in re.finditer(re.escape(token), text)]

    def _stands_alone(self, token: str) -> bool:
        """Whether no other added token could take part of this one's characters away from it."""
        known = self._proven.get(token)
        if known is None:
            known = not any(
                (token in other and other != token)
                or any(other.endswith(token[:n]) for n in range(1, len(token)))
                for other in self._all
            )
            self._proven[token] = known
        return known


def _overlapping(offsets: Sequence[Span], spans: Sequence[Span]) -> np.ndarray:
    """Mark the tokens that have a character inside one of the ascending ranges: bool [length]."""
    mask = np.zeros(len(offsets), dtype=bool)
    if not spans or not offsets:
        return mask
    table = np.asarray(offsets, dtype=np.int64)
    starts, ends = table[:, 0].copy(), table[:, 1]
    # Post-processors may trim spaces off the offsets, all of a token's if it is nothing else.
    blank = starts == ends
    before = np.concatenate([[0], np.maximum.accumulate(ends)[:-1]])
    starts[blank] = np.minimum(before[blank], starts[blank])
    for start, end in spans:
        mask |= (ends > start) & (starts < end)
    return mask
