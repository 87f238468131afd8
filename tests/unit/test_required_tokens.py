"""Which ids must stay, and why: end of text, markup, bytes, and the caller's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from vtrim_hf.required_tokens import (
    LEFT_OUT,
    REASONS,
    RequiredTokens,
    byte_pieces,
    required_token_ids,
)
from vtrim_hf.vocabulary import rank_ids

LLAMA3_LIKE = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.tool_calls %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- set call = message.tool_calls[0].function %}
{{- '<|python_tag|>{"name": "' + call.name + '", "parameters": ' }}
{{- (call.arguments | tojson) + '}' }}
{{- '<|eom_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim }}
{{- '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

MISTRAL_LIKE = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- raise_exception('no system turn here') }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{- '[INST] ' + message.content + '[/INST]' }}
{%- elif message.tool_calls %}
{%- if message.tool_calls[0].id | length != 9 %}{{- raise_exception('nine letters') }}{%- endif %}
{{- '[TOOL_CALLS] [' + (message.tool_calls[0].function | tojson) + ']' + eos_token }}
{%- elif message.role == 'tool' %}{{- '[TOOL_RESULTS] ' + message.content + '[/TOOL_RESULTS]' }}
{%- else %}{{- ' ' + message.content | trim + eos_token }}
{%- endif %}
{%- endfor %}
"""

ROLE_HEADERS = """\
{%- for message in messages %}
{{- '<|' + message.role + '|>\n' + message.content + '<|done|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- endif %}
"""

PLAIN_END = """\
{%- for message in messages %}
{{- '### ' + message.role + '\n' + message.content + '\n~~over~~\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '### assistant\n' }}{%- endif %}
"""


def add(tokenizer: PreTrainedTokenizerFast, *contents: str, special: bool = True) -> list[int]:
    tokenizer.add_tokens(
        [AddedToken(text, special=special, normalized=False) for text in contents]
    )
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[content] for content in contents]


def sentencepiece_like(*, missing: tuple[int, ...] = ()) -> PreTrainedTokenizerFast:
    """A BPE with byte fallback, its byte pieces between the special tokens and the others.

    It also holds letters of the byte-level alphabet, as the large multilingual ones do.
    """
    names = ["<unk>", "<s>", "</s>"]
    names += [f"<0x{byte:02X}>" for byte in range(256) if byte not in missing]
    names += ["▁", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ"]
    model = models.BPE(
        {name: i for i, name in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


class TestEndOfText:
    @pytest.mark.parametrize(
        "eos", [5, [5, 7], torch.tensor([5, 7])], ids=["int", "list", "tensor"]
    )
    def test_int_and_list_of_generation_config(self, byte_tokenizer: Any, eos: Any) -> None:
        config = GenerationConfig()
        config.eos_token_id = eos
        required = required_token_ids(byte_tokenizer, config)
        wanted = (5,) if isinstance(eos, int) else (5, 7)
        assert required.by_reason["generation_config_eos"] == wanted
        assert required.by_reason["tokenizer_eos"] == (2,)
        assert set(wanted) <= set(required)

    def test_mapping_in_place_of_a_generation_config(self, byte_tokenizer: Any) -> None:
        required = required_token_ids(byte_tokenizer, {"eos_token_id": [9]})
        assert required.by_reason["generation_config_eos"] == (9,)

    def test_no_eos_anywhere(self, byte_tokenizer: Any) -> None:
        byte_tokenizer.eos_token = None
        byte_tokenizer.chat_template = None
        required = required_token_ids(byte_tokenizer)
        assert "tokenizer_eos" not in required.by_reason
        assert "generation_config_eos" not in required.by_reason

    def test_the_template_ends_a_turn_otherwise_than_the_tokenizer(
        self, byte_tokenizer: Any
    ) -> None:
        (done,) = add(byte_tokenizer, "<|done|>")
        byte_tokenizer.chat_template = ROLE_HEADERS
        assert required_token_ids(byte_tokenizer).by_reason["end_of_turn"] == (done,)

    def test_a_plain_text_end_is_kept_piece_by_piece(self, byte_tokenizer: Any) -> None:
        byte_tokenizer.chat_template = PLAIN_END
        required = required_token_ids(byte_tokenizer)
        pieces = byte_tokenizer.encode("\n~~over~~", add_special_tokens=False)
        assert set(required.by_reason["end_of_turn"]) == set(pieces)

    @pytest.mark.parametrize("size_left", [0, 1, 50])
    def test_first_ids_of_the_ranking_whatever_the_size(
        self, byte_tokenizer: Any, size_left: int
    ) -> None:
        """[MiaAI-Lab/Qwen3.8-Flash-Next-Single-DGX-Spark#43] rare in counts, kept at every k."""
        required = required_token_ids(byte_tokenizer, {"eos_token_id": [0, 2]})
        counts = np.full(310, 1000)
        counts[list(required)] = 0
        kept = rank_ids(counts, required)[: len(required) + size_left]
        assert set(required) <= set(kept.tolist())


class TestAddedTokens:
    def test_byte_tokenizer_keeps_markup_and_lists_it(self, byte_tokenizer: Any) -> None:
        required = required_token_ids(byte_tokenizer)
        tags = byte_tokenizer.convert_tokens_to_ids(
            ["<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>"]
        )
        assert set(tags) <= set(required.by_reason["added_token"])
        assert required.by_reason["end_of_turn"] == (2,)

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            ("<|image_pad|>", "other_media"),
            ("<|vision_start|>", "other_media"),
            ("<|AUDIO|>", "other_media"),
            ("[IMG]", "other_media"),
            ("<image_soft_token>", "other_media"),
            ("<|fim_prefix|>", "fill_in_the_middle"),
            ("[SUFFIX]", "fill_in_the_middle"),
            ("▁<MID>", "fill_in_the_middle"),
            ("<|reserved_special_token_17|>", "reserved"),
            ("<unused42>", "reserved"),
            ("<SPECIAL_20>", "reserved"),
            ("[control_8]", "reserved"),
            ("<｜place▁holder▁no▁3｜>", "reserved"),  # noqa: RUF001
            ("<|dummy_0|>", "reserved"),
            ("<|user|>", "other_roles"),
            ("[INST]", "other_roles"),
        ],
    )
    def test_left_out_by_name(self, byte_tokenizer: Any, content: str, why: str) -> None:
        (token_id,) = add(byte_tokenizer, content)
        required = required_token_ids(byte_tokenizer)
        assert token_id not in required
        assert required.left_out[why] == (token_id,)

    @pytest.mark.parametrize(
        "content",
        [
            "<|python_tag|>",
            "<|eom_id|>",
            "[TOOL_CALLS]",
            "<|channel|>",
            "<answer>",
            "<table>",
            "<|box_start|>",
            "<|end_of_user|>",
            "\n\n",
        ],
    )
    def test_kept_in_doubt(self, byte_tokenizer: Any, content: str) -> None:
        (token_id,) = add(byte_tokenizer, content)
        assert token_id in required_token_ids(byte_tokenizer).by_reason["added_token"]

    def test_rendering_overrules_the_name(self, byte_tokenizer: Any) -> None:
        """A reserved token that the template puts into assistant turns is sayable."""
        (end,) = add(byte_tokenizer, "<|reserved_special_token_1|>")
        byte_tokenizer.chat_template = ROLE_HEADERS.replace(
            "<|done|>", "<|reserved_special_token_1|>"
        )
        assert required_token_ids(byte_tokenizer).reasons(end) == (
            "end_of_turn",
            "assistant_markup",
            "added_token",
        )

    def test_role_headers_that_only_others_have(self, byte_tokenizer: Any) -> None:
        user, system, assistant, done = add(
            byte_tokenizer, "<|user|>", "<|system|>", "<|assistant|>", "<|done|>"
        )
        byte_tokenizer.chat_template = ROLE_HEADERS
        required = required_token_ids(byte_tokenizer)
        assert {assistant, done} <= set(required)
        assert required.left_out["other_roles"] == (user, system)

    def test_padding_token(self, byte_tokenizer: Any) -> None:
        (pad,) = add(byte_tokenizer, "<pad>")
        byte_tokenizer.pad_token = "<pad>"
        required = required_token_ids(byte_tokenizer)
        assert pad not in required
        assert required.left_out["filler"] == (pad,)

    def test_padding_token_that_also_ends_the_text_stays(self, byte_tokenizer: Any) -> None:
        byte_tokenizer.pad_token = byte_tokenizer.eos_token
        assert byte_tokenizer.pad_token_id in required_token_ids(byte_tokenizer)


class TestTemplates:
    def test_llama3_like(self, byte_tokenizer: Any) -> None:
        bos, start, stop, eot, eom, python, reserved = add(
            byte_tokenizer,
            "<|begin_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|eom_id|>",
            "<|python_tag|>",
            "<|reserved_special_token_2|>",
        )
        byte_tokenizer.bos_token = "<|begin_of_text|>"
        byte_tokenizer.chat_template = LLAMA3_LIKE
        required = required_token_ids(byte_tokenizer, {"eos_token_id": [eot, eom]})
        assert required.by_reason["end_of_turn"] == (eot,)
        assert {python, eom} <= set(required.by_reason["assistant_markup"])
        # The header opens the assistant's turn, but is in the prompt and never said.
        assert not {start, stop} & set(required.by_reason["assistant_markup"])
        assert {bos, start, stop} <= set(required.by_reason["added_token"])
        assert reserved not in required

    def test_mistral_like(self, byte_tokenizer: Any) -> None:
        opened, closed, calls, results = add(
            byte_tokenizer, "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]"
        )
        byte_tokenizer.chat_template = MISTRAL_LIKE
        required = required_token_ids(byte_tokenizer)
        assert required.by_reason["end_of_turn"] == (byte_tokenizer.eos_token_id,)
        assert calls in required.by_reason["assistant_markup"]
        assert results in required  # a name about tools is more than doubt
        assert required.left_out["other_roles"] == (opened, closed)

    def test_tool_call_pieces_in_plain_text(self, byte_tokenizer: Any) -> None:
        byte_tokenizer.chat_template = LLAMA3_LIKE  # <|python_tag|> is no token here
        markup = set(required_token_ids(byte_tokenizer).by_reason["assistant_markup"])
        pieces = byte_tokenizer.encode('<|python_tag|>{"name": "', add_special_tokens=False)
        assert set(pieces) <= markup

    def test_payload_is_no_markup(self, byte_tokenizer: Any) -> None:
        markup = set(required_token_ids(byte_tokenizer).by_reason["assistant_markup"])
        q = byte_tokenizer.convert_tokens_to_ids("q")  # in every payload of the probe
        assert q not in markup

    def test_think_tag_named_but_never_rendered(self, byte_tokenizer: Any) -> None:
        byte_tokenizer.chat_template = byte_tokenizer.chat_template + "{# <reasoning> #}"
        markup = set(required_token_ids(byte_tokenizer).by_reason["assistant_markup"])
        assert set(byte_tokenizer.encode("<reasoning>", add_special_tokens=False)) <= markup

    def test_no_template(self, byte_tokenizer: Any) -> None:
        byte_tokenizer.chat_template = None
        required = required_token_ids(byte_tokenizer)
        assert "end_of_turn" not in required.by_reason
        assert {0, 1, 2} <= set(required)

    def test_template_that_takes_nothing(self, byte_tokenizer: Any) -> None:
        byte_tokenizer.chat_template = "{{ raise_exception('never') }}"
        required = required_token_ids(byte_tokenizer)
        assert "end_of_turn" not in required.by_reason
        assert {0, 1, 2} <= set(required)


class TestBytes:
    def test_byte_level(self, byte_tokenizer: Any) -> None:
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        ids = byte_tokenizer.convert_tokens_to_ids(alphabet)
        required = required_token_ids(byte_tokenizer)
        assert len(required.by_reason["byte_piece"]) == 256
        assert set(required.by_reason["byte_piece"]) == set(ids)

    @pytest.mark.parametrize(
        "text", ["¿Dónde está?", "北京在哪里", "🙂‍↔️"], ids=["es", "zh", "emoji"]
    )
    def test_any_text_can_be_spelled(self, byte_tokenizer: Any, text: str) -> None:
        """[MiaAI-Lab/Qwen3.8-Flash-Next-Single-DGX-Spark#43] with English counts only."""
        required = required_token_ids(byte_tokenizer)
        spelled = [byte_tokenizer.encode(chr_, add_special_tokens=False) for chr_ in text]
        single = [i for ids in spelled for i in ids if i in required]
        assert byte_tokenizer.decode(single) == text

    def test_byte_fallback_at_its_own_ids(self) -> None:
        tokenizer = sentencepiece_like()
        assert byte_pieces(tokenizer) == set(range(3, 259))

    def test_byte_fallback_with_a_gap(self) -> None:
        tokenizer = sentencepiece_like(missing=(0, 7))
        assert len(byte_pieces(tokenizer)) == 254

    def test_letters_of_the_byte_alphabet_are_only_letters_here(self) -> None:
        tokenizer = sentencepiece_like()
        assert tokenizer.convert_tokens_to_ids("Ġ") not in byte_pieces(tokenizer)

    def test_no_bytes_at_all(self) -> None:
        model = models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "</s>": 3}, unk_token="[UNK]")
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(model), unk_token="[UNK]", eos_token="</s>"
        )
        assert byte_pieces(tokenizer) == set()
        assert tuple(required_token_ids(tokenizer)) == (3,)


class TestOwnList:
    def test_ids_and_texts(self, byte_tokenizer: Any) -> None:
        pieces = byte_tokenizer.encode(" rare words", add_special_tokens=False)
        required = required_token_ids(byte_tokenizer, extra=[280, " rare words", np.int64(270)])
        assert set(required.by_reason["user_list"]) == {270, 280, *pieces}

    def test_one_text(self, byte_tokenizer: Any) -> None:
        pieces = byte_tokenizer.encode("SELECT", add_special_tokens=False)
        required = required_token_ids(byte_tokenizer, extra="SELECT")
        assert set(required.by_reason["user_list"]) == set(pieces)

    @pytest.mark.parametrize("wrong", [300, -1, 10**9])
    def test_id_that_is_no_token(self, byte_tokenizer: Any, wrong: int) -> None:
        with pytest.raises(ValueError, match=rf"in \[0, 300\) or added ones, got {wrong}"):
            required_token_ids(byte_tokenizer, extra=[wrong])

    @pytest.mark.parametrize("wrong", [1.5, True, None])
    def test_neither_id_nor_text(self, byte_tokenizer: Any, wrong: Any) -> None:
        with pytest.raises(TypeError, match="extra holds token ids and texts"):
            required_token_ids(byte_tokenizer, extra=[wrong])

    def test_empty_text(self, byte_tokenizer: Any) -> None:
        with pytest.raises(ValueError, match="must have pieces"):
            required_token_ids(byte_tokenizer, extra=[""])


class TestBeyondTheTokenizer:
    def test_padding_rows_are_never_kept(self, byte_tokenizer: Any) -> None:
        """[vllm-project/vllm#7218] ids from len(tokenizer) on have rows, but no token."""
        required = required_token_ids(byte_tokenizer, {"eos_token_id": [2, 300, 383]})
        assert max(required) < 300
        assert required.left_out["no_token"] == (300, 383)

    def test_added_token_beyond_the_length_is_kept(self, byte_tokenizer: Any) -> None:
        class Gapped:
            """Added tokens may lie behind a gap, so that their ids pass `len(tokenizer)`."""

            def __getattr__(self, name: str) -> Any:
                return getattr(byte_tokenizer, name)

            def __len__(self) -> int:
                return len(byte_tokenizer)

            @property
            def added_tokens_decoder(self) -> dict[int, AddedToken]:
                return {**byte_tokenizer.added_tokens_decoder, 350: AddedToken("<|late_end|>")}

        required = required_token_ids(Gapped(), {"eos_token_id": [350, 351]})
        assert required.reasons(350) == ("generation_config_eos", "added_token")
        assert 351 not in required

    def test_target_narrower_than_the_tokenizer(self, byte_tokenizer: Any) -> None:
        required = required_token_ids(byte_tokenizer, vocab_size=298)
        assert max(required) < 298
        assert required.left_out["no_token"] == (298, 299)
        with pytest.raises(ValueError, match=r"\[0, 298\)"):
            required_token_ids(byte_tokenizer, extra=[299], vocab_size=298)


class TestRequiredTokens:
    def test_ascending_once_and_sized(self) -> None:
        required = RequiredTokens({"user_list": (9, 4), "byte_piece": (4, 2)})
        assert list(required) == [2, 4, 9]
        assert required.ids == (2, 4, 9)
        assert len(required) == 3
        assert 4 in required
        assert 5 not in required
        assert required.reasons(4) == ("user_list", "byte_piece")
        assert required.reasons(5) == ()

    def test_without_a_reason(self) -> None:
        required = RequiredTokens({"user_list": (9, 4), "byte_piece": (4, 2)})
        assert required.without("byte_piece").ids == (4, 9)
        with pytest.raises(ValueError, match="got 'byte_pieces'"):
            required.without("byte_pieces")

    def test_reasons_are_the_documented_ones(self, byte_tokenizer: Any) -> None:
        add(byte_tokenizer, "<|image|>", "<|user|>")
        required = required_token_ids(byte_tokenizer, {"eos_token_id": [2, 999]}, extra=[7])
        assert tuple(required.by_reason) == tuple(REASONS)
        assert set(required.left_out) <= set(LEFT_OUT)
        assert all(list(ids) == sorted(set(ids)) for ids in required.by_reason.values())


class TestRealTokenizers:
    def test_smollm2(self, smollm2_tokenizer: Any) -> None:
        required = required_token_ids(smollm2_tokenizer, {"eos_token_id": 2})
        assert required.by_reason["end_of_turn"] == (2,)
        assert required.by_reason["added_token"] == tuple(range(17))
        # This tokenizer was trained without 21 of the bytes.
        assert len(required.by_reason["byte_piece"]) == 235
        # The newline after <|im_end|> is the template's, and never said.
        newline = smollm2_tokenizer.encode("\n", add_special_tokens=False)[0]
        assert newline not in required.by_reason["assistant_markup"]

    def test_qwen_like_names(self, byte_tokenizer: Any) -> None:
        """The added tokens of Qwen2.5: what stays is what text can hold."""
        left_out = ["<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>"]
        left_out += ["<|video_pad|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_pad|>"]
        out = add(byte_tokenizer, *left_out)
        kept = add(byte_tokenizer, "<|object_ref_start|>", "<|repo_name|>", "<|file_sep|>")
        required = required_token_ids(byte_tokenizer)
        assert not set(out) & set(required)
        assert set(kept) <= set(required)
