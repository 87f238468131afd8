"""Which tokens are the assistant's, by template and row shape; the fast way against the slow."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chat_templates import END_OF_TURN, FAMILIES, chat, make_tokenizer
from vtrim_hf.chat_messages import MalformedRow
from vtrim_hf.chat_rendering import ChatRenderer, render_conversation
from vtrim_hf.chat_rows import UnknownShape, read_row

TOKENIZERS = {family: make_tokenizer(family) for family in FAMILIES}
RENDERERS = {family: ChatRenderer(tokenizer) for family, tokenizer in TOKENIZERS.items()}


def said(family: str, messages: Any, **kwargs: Any) -> list[str]:
    conversation = read_row({"messages": messages, **kwargs})
    return [text for part in RENDERERS[family].render(conversation) for text in part.said()]


def marked(tokenizer: Any, encoded: Any) -> str:
    text: str = tokenizer.decode(encoded.input_ids[encoded.assistant_mask])
    return text


def end_of(family: str) -> str:
    return END_OF_TURN.get(family, "<|im_end|>")


def spoken(family: str, text: str) -> str:
    """What a family's template makes of an answer."""
    lead = {"mistral": " ", "qwen3": "<think>\n\n</think>\n\n"}.get(family, "")
    return lead + text + end_of(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_counts_through_its_end_of_turn_token_and_no_further(family: str) -> None:
    assert said(family, chat("Who are you?", "A fox.")) == [spoken(family, "A fox.")]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_assistant_turn_counts_and_no_other(family: str) -> None:
    texts = said(family, chat("one", "First answer", "two", "Second answer", "three"))
    assert sorted(texts) == sorted(
        [spoken(family, "First answer"), spoken(family, "Second answer")]
    )


@pytest.mark.parametrize(
    "family", ["chatml", "llama3", "mistral", "gemma", "qwen3", "tagged", "phi3"]
)
def test_training_ids_are_prompt_ids_and_reply_ids(family: str) -> None:
    """What `generate` is given, and what it then says, make the training text [SpecForge#296]."""
    tokenizer = TOKENIZERS[family]
    messages = chat("What is the name of the city?", "It is called Rome, said the fox.")
    (encoded,) = render_conversation(tokenizer, messages)
    prompt = tokenizer.apply_chat_template(
        messages[:-1], add_generation_prompt=True, return_dict=False
    )
    reply = tokenizer.encode(spoken(family, messages[-1]["content"]), add_special_tokens=False)
    assert encoded.input_ids.tolist() == [*prompt, *reply]
    assert encoded.assistant_mask.tolist() == [False] * len(prompt) + [True] * len(reply)


@pytest.mark.parametrize("family", ["chatml", "llama3", "gemma", "mistral", "phi3", "plain"])
def test_ids_are_those_of_the_whole_rendering(family: str) -> None:
    tokenizer = TOKENIZERS[family]
    messages = chat("one", "First", "two", "Second", "three")
    *_, encoded = render_conversation(tokenizer, messages)
    whole = tokenizer.apply_chat_template(messages, return_dict=False)
    assert encoded.input_ids.tolist() == whole[: len(encoded)]
    assert encoded.assistant_mask[-1]


def test_old_thinking_counts_where_it_was_said() -> None:
    """Qwen3 drops earlier thinking from the history, but the target said it in its turn."""
    messages = chat("one", "<think>\nhard\n</think>\n\nFirst", "two", "Second")
    parts = RENDERERS["qwen3"].render(read_row({"messages": messages}))
    assert [part.turns for part in parts] == [(3,), (1,)]
    last, first = parts
    assert last.text == TOKENIZERS["qwen3"].apply_chat_template(messages, tokenize=False)
    assert "hard" not in last.text
    assert last.said() == ("<think>\n\n</think>\n\nSecond<|im_end|>",)
    assert first.said() == ("<think>\nhard\n</think>\n\nFirst<|im_end|>",)


def test_reasoning_fields_reach_the_template() -> None:
    messages = chat("one", "First")
    messages[1]["reasoning_content"] = "let me see"
    assert said("qwen3", messages) == ["<think>\nlet me see\n</think>\n\nFirst<|im_end|>"]


def test_template_kwargs_change_what_the_target_says() -> None:
    """Where the generation prompt already closes the thinking, the target does not say it."""
    renderer = ChatRenderer(TOKENIZERS["qwen3"], template_kwargs={"enable_thinking": False})
    (part,) = renderer.render(read_row({"messages": chat("one", "First")}))
    assert part.said() == ("First<|im_end|>",)
    assert renderer.template_hash != RENDERERS["qwen3"].template_hash


@pytest.mark.parametrize("answer", ["Plain", "<b>bold</b>", "<thin", "<", ""])
def test_an_opened_think_that_the_history_lacks_is_no_part_of_the_answer(answer: str) -> None:
    """R1's prompt opens <think>, its history has none: whole tokens of the header are shared."""
    assert said("r1", chat("one", answer)) == [answer + "<|eos|>"]


def test_generation_tags_decide_and_the_end_of_turn_is_added() -> None:
    assert "generation" in FAMILIES["tagged"][0]
    assert said("tagged", chat("a", "b")) == ["b<|im_end|>"]
    assert said("tagged-wide", chat("a", "b")) == ["b<|im_end|>"]
    tokenizer = make_tokenizer("tagged")
    narrow = tokenizer.chat_template.replace(
        "{{- message['content'] }}{%- endgeneration",
        "{{- message['content'][:2] }}{%- endgeneration",
    ).replace("{%- endgeneration %}", "{%- endgeneration %}{{- message['content'][2:] }}")
    (part,) = ChatRenderer(tokenizer, chat_template=narrow).render(
        read_row({"messages": chat("q", "abcd")})
    )
    assert part.said() == ("ab",)


def test_masks_of_generation_tags_are_transformers_own() -> None:
    tokenizer = TOKENIZERS["tagged"]
    messages = chat("a b", "c d e", "f", "the fox")
    (encoded,) = render_conversation(tokenizer, messages)
    theirs: Any = tokenizer.apply_chat_template(
        messages, return_assistant_tokens_mask=True, return_dict=True
    )
    mask = np.asarray(theirs["assistant_masks"], dtype=bool)
    ends = np.flatnonzero(encoded.input_ids == tokenizer.eos_token_id)[1::2]
    mask[ends] = True  # they leave the end-of-turn token out
    assert encoded.input_ids.tolist() == theirs["input_ids"][:-1]  # the newline after it all
    assert (encoded.assistant_mask == mask[:-1]).all()


def said_ids(renderer: ChatRenderer, rendered: Any) -> list[np.ndarray]:
    """What counting tokenises: only the assistant's text, where that is proven to be the same."""
    said = []
    for part in rendered:
        pieces = renderer.tokens.pieces(part.text, part.spans)
        ids: list[int] = []
        for piece, encoded in zip(pieces, renderer.tokens.encode_pieces(pieces), strict=True):
            ids += renderer.tokens.piece_ids(piece, encoded)
        said.append(np.asarray(ids, dtype=np.int64))
    return said


def test_a_token_over_the_border_is_the_assistants() -> None:
    """One tokenisation of the whole text: "\\n" and "\\n" may be one token; offsets decide."""
    tokenizer = make_tokenizer("chatml")
    tokenizer.backend_tokenizer.model = _with_merge(tokenizer, "Ċ", "Ċ")
    renderer = ChatRenderer(tokenizer)
    conversation = read_row({"messages": chat("one", "\n\nHi")})
    (encoded,) = renderer.encode(conversation)
    text = tokenizer.apply_chat_template(chat("one", "\n\nHi"), tokenize=False)
    whole = tokenizer.encode(text, add_special_tokens=False)
    assert encoded.input_ids.tolist() == whole[: len(encoded)]
    assert marked(tokenizer, encoded) == "\n\n\nHi<|im_end|>"
    (ids,) = said_ids(renderer, renderer.render(conversation))
    assert ids.tolist() == encoded.input_ids[encoded.assistant_mask].tolist()


def _with_merge(tokenizer: Any, left: str, right: str) -> Any:
    """Teach a copy of the model one more merge, in place of its last token."""
    import json

    from tokenizers import models

    state = json.loads(tokenizer.backend_tokenizer.model.__getstate__())
    vocab = {k: v for k, v in state["vocab"].items() if v != max(state["vocab"].values())}
    vocab[left + right] = max(state["vocab"].values())
    merges = [
        tuple(m) for m in state["merges"] if "".join(m) in vocab and all(p in vocab for p in m)
    ]
    return models.BPE(vocab=vocab, merges=[*merges, (left, right)])


def test_tool_calls_count_with_their_markup_and_tool_results_do_not() -> None:
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "rain"}}}
    messages = [
        {"role": "user", "content": "Will it rain?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "yes"},
        {"role": "assistant", "content": "It will."},
    ]
    first, second = said("chatml", messages, tools=[{"name": "search"}])
    assert second == "It will.<|im_end|>"
    call_text = '{"name": "search", "arguments": {"query": "rain"}}'
    assert first == f"<tool_call>\n{call_text}\n</tool_call><|im_end|>"


@pytest.mark.parametrize("arguments", [{"q": 1}, '{"q": 1}'], ids=["object", "text"])
def test_arguments_may_be_an_object_or_json_text(arguments: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    assert said("llama3", messages) == ['{"name": "f", "parameters": {"q": 1}}<|eom_id|>']


def test_a_template_that_adds_arguments_to_a_string_gets_text() -> None:
    tokenizer = make_tokenizer("llama3")
    template = tokenizer.chat_template.replace("arguments | tojson", "arguments + ''")
    call = {"function": {"name": "f", "arguments": {"q": "ü"}}}
    row = {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    }
    (part,) = ChatRenderer(tokenizer, chat_template=template).render(read_row(row))
    assert part.said() == ('{"name": "f", "parameters": {"q": "ü"}}<|eom_id|>',)


def test_content_in_parts_fits_either_kind_of_template() -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "see"}, {"type": "text", "text": " it"}]
    messages = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [{"type": "text", "text": "yes"}]},
    ]
    for family in ("chatml", "gemma", "parts"):
        assert said(family, messages) == ["yes" + end_of(family)]
        assert said(family, chat("plain", "text")) == ["text" + end_of(family)]
    (part,) = RENDERERS["parts"].render(read_row({"messages": messages}))
    assert "<image>see it" in part.text
    (part,) = RENDERERS["gemma"].render(read_row({"messages": messages}))
    assert "see it" in part.text
    assert "type" not in part.text


def test_whitespace_that_the_template_strips_is_not_said() -> None:
    assert said("llama3", chat("a", "  spaced \n")) == ["spaced<|eot_id|>"]
    assert said("chatml", chat("a", "  spaced \n")) == ["  spaced \n<|im_end|>"]


def test_empty_content_is_an_end_of_turn() -> None:
    assert said("chatml", chat("a", "")) == ["<|im_end|>"]


@pytest.mark.parametrize("family", ["chatml", "gemma", "phi3"])
def test_the_assistant_may_speak_first_and_twice(family: str) -> None:
    messages = [{"role": "assistant", "content": t} for t in ("Hello", "Again")]
    assert said(family, messages) == ["Hello" + end_of(family), "Again" + end_of(family)]


def test_the_assistant_first_behind_a_default_system_prompt(smollm2_tokenizer: Any) -> None:
    """SmolLM2 writes a system prompt of its own before an opening assistant turn."""
    (encoded,) = render_conversation(smollm2_tokenizer, [{"role": "assistant", "content": "Hi"}])
    assert marked(smollm2_tokenizer, encoded) == "Hi<|im_end|>"


def test_smollm2_newline_after_the_end_of_turn_is_not_said(smollm2_tokenizer: Any) -> None:
    messages = chat("one", "First answer.", "two", "Zweite Antwort: äöü 🦊")
    (encoded,) = render_conversation(smollm2_tokenizer, messages)
    text = smollm2_tokenizer.apply_chat_template(messages, tokenize=False)
    text = text.removesuffix("\n")
    assert encoded.input_ids.tolist() == smollm2_tokenizer.encode(text, add_special_tokens=False)
    assert (
        marked(smollm2_tokenizer, encoded)
        == "First answer.<|im_end|>Zweite Antwort: äöü 🦊<|im_end|>"
    )


def test_an_end_of_turn_in_the_content_ends_the_turn() -> None:
    """The target stops at the first one: what the data writes behind it is never said."""
    assert said("chatml", chat("a", "b<|im_end|>")) == ["b<|im_end|>"]


def test_a_template_that_refuses_makes_a_malformed_row() -> None:
    with pytest.raises(MalformedRow, match="roles must alternate"):
        said("mistral", chat("a", "b", system="Be brief."))


def test_a_history_that_changes_with_the_answer_is_refused() -> None:
    """Nothing is guessed where the turn cannot be told from the history."""
    tokenizer = make_tokenizer("chatml")
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + ' ' ~ (messages | length) ~ '\n' + "
        "m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
    )
    with pytest.raises(MalformedRow, match="renders the history anew"):
        ChatRenderer(tokenizer, chat_template=template).render(
            read_row({"messages": chat("a", "b")})
        )


def test_a_template_with_a_wrong_syntax_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match=r"cannot be parsed \(line 1"):
        ChatRenderer(TOKENIZERS["chatml"], chat_template="{% if %}")


def test_named_templates_are_chosen_by_tools_and_by_name() -> None:
    tokenizer = make_tokenizer("chatml")
    own = tokenizer.chat_template
    tokenizer.chat_template = {"default": own, "tool_use": own.replace("Tools:", "Functions:")}
    renderer = ChatRenderer(tokenizer)
    (part,) = renderer.render(read_row({"messages": chat("a", "b"), "tools": [{"name": "f"}]}))
    assert part.said() == ("b<|im_end|>",)
    assert "Functions:" in part.text


def test_chats_without_a_template_say_what_to_do() -> None:
    tokenizer = make_tokenizer("chatml")
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match=r"no chat template.*chat_template="):
        render_conversation(tokenizer, chat("a", "b"))


@pytest.mark.parametrize("chat_free", [True, False], ids=["no template", "chat_template=False"])
def test_plain_rows_without_a_template(chat_free: bool) -> None:
    tokenizer = make_tokenizer("chatml")
    if chat_free:
        tokenizer.chat_template = None
    (encoded,) = render_conversation(
        tokenizer, {"prompt": "the quick", "completion": " brown fox"}, chat_template=False
    )
    assert marked(tokenizer, encoded) == " brown fox<|im_end|>"
    whole = tokenizer.encode("the quick brown fox<|im_end|>", add_special_tokens=False)
    assert encoded.input_ids.tolist() == whole
    (encoded,) = render_conversation(
        tokenizer, {"instruction": "Add", "input": "1 2", "output": "3"}, chat_template=False
    )
    assert tokenizer.decode(encoded.input_ids) == "Add\n\n1 2\n\n3<|im_end|>"
    assert marked(tokenizer, encoded) == "3<|im_end|>"


def test_a_text_column_is_said_as_a_whole() -> None:
    renderer = RENDERERS["chatml"]
    (part,) = renderer.render(read_row({"body": "the fox"}, text_column="body"))
    assert part.said() == ("the fox",)


SHAPES = [
    ({"messages": chat("q", "a")}, "messages"),
    (
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        "conversations",
    ),
    ({"conversation": chat("q", "a")}, "conversations"),
    ({"messages": [{"from": "user", "value": "q"}, {"from": "model", "value": "a"}]}, "messages"),
    ({"messages": {"role": ["user", "assistant"], "content": ["q", "a"]}}, "messages"),
    (
        {"messages": '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]'},
        "messages",
    ),
    ({"prompt": "q", "completion": "a"}, "prompt/completion"),
    (
        {"prompt": chat("q"), "completion": [{"role": "assistant", "content": "a"}]},
        "prompt/completion",
    ),
    ({"instruction": "q", "output": "a"}, "instruction/output"),
    ({"instruction": "q", "input": "", "response": "a"}, "instruction/output"),
]


@pytest.mark.parametrize(("row", "shape"), SHAPES)
def test_row_shapes(row: dict[str, Any], shape: str) -> None:
    conversation = read_row(row)
    assert conversation.shape == shape
    (part,) = RENDERERS["chatml"].render(conversation)
    assert part.said() == ("a<|im_end|>",)
    assert "<|im_start|>user\nq<|im_end|>" in part.text
    assert conversation.digest() == read_row({"messages": chat("q", "a")}).digest()


def test_sharegpt_speakers() -> None:
    row = {
        "system": "Be brief.",
        "tools": '[{"name": "f"}]',
        "conversations": [
            {"from": "human", "value": "q"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
            {"from": "observation", "value": "2"},
            {"from": "gpt", "value": "two"},
        ],
    }
    conversation = read_row(row)
    roles = [m["role"] for m in conversation.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    (part,) = RENDERERS["chatml"].render(conversation)
    assert part.said() == (
        '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call><|im_end|>',
        "two<|im_end|>",
    )


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        pytest.param([1], "named columns", id="no mapping"),
        pytest.param({"messages": []}, "is empty", id="empty"),
        pytest.param({"messages": "text"}, "no JSON", id="no JSON"),
        pytest.param({"messages": 3}, "must be a list", id="number"),
        pytest.param({"messages": ["hi"]}, r"messages\[0\] must be an object", id="no object"),
        pytest.param({"messages": [{"content": "x"}]}, "names no speaker", id="no role"),
        pytest.param(
            {"messages": [{"role": "user", "content": 5}]}, "got int", id="number as content"
        ),
        pytest.param(
            {"messages": [{"role": "assistant"}]}, "neither content nor", id="nothing said"
        ),
        pytest.param(
            {"conversations": [{"from": "alien", "value": "x"}]}, "'alien'", id="speaker"
        ),
        pytest.param({"instruction": "a", "output": 3}, "output must be text", id="output"),
        pytest.param(
            {"prompt": "a", "completion": "b", "tools": "x"}, "tools is text", id="tools"
        ),
        pytest.param({"assistant_token_ids": ["a"]}, "token ids", id="ids"),
        pytest.param({"assistant_token_ids": [1, 2**31]}, "token ids", id="ids too large"),
        pytest.param({"assistant_token_ids": [[1], [10**30]]}, "token ids", id="ids huge"),
    ],
)
def test_malformed_rows_say_which_rule_they_break(row: Any, rule: str) -> None:
    with pytest.raises(MalformedRow, match=rule):
        read_row(row)


def test_unknown_shapes_list_the_columns() -> None:
    with pytest.raises(UnknownShape, match="a, b"):
        read_row({"b": 1, "a": 2})


def test_half_a_surrogate_pair_is_malformed() -> None:
    with pytest.raises(MalformedRow, match="Unicode"):
        read_row({"messages": chat("q", "\ud83e")}).digest()


def test_truncation_left_on_by_an_earlier_call_changes_nothing() -> None:
    tokenizer = make_tokenizer("chatml")
    conversation = read_row({"messages": chat("the quick brown fox", "jumps over the lazy dog")})
    renderer = ChatRenderer(tokenizer)
    before = said_ids(renderer, renderer.render(conversation))[0].tolist()
    tokenizer(["the quick brown fox"] * 2, truncation=True, max_length=2, padding="max_length")
    assert tokenizer.backend_tokenizer.truncation is not None
    assert said_ids(renderer, renderer.render(conversation))[0].tolist() == before
    assert renderer.encode(conversation)[0].assistant_mask.sum() == len(before)
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 2


TEXTS = st.text(
    alphabet=st.one_of(
        st.sampled_from(list("ab \n\t'ĠÄé🦊e\u0301<|>[]/:")),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=12,
)
PIECES = st.sampled_from(
    [
        "<|im_end|>",
        "<|im_start|>",
        "assistant\n",
        "<think>",
        "</think>",
        "<tool_call>",
        "</s>",
        "[INST]",
        " ",
    ]
)
CONTENTS = st.lists(st.one_of(TEXTS, PIECES), max_size=4).map("".join)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "parts"])
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(turns=st.lists(CONTENTS, min_size=2, max_size=5))
def test_the_short_way_gives_the_ids_of_the_long_way(family: str, turns: list[str]) -> None:
    """Tokenising only what the assistant says gives what whole texts and offsets give."""
    renderer = RENDERERS[family]
    try:
        parts = renderer.render(read_row({"messages": chat(*turns)}))
    except MalformedRow:
        return
    short = said_ids(renderer, parts)
    for part, ids in zip(parts, short, strict=True):
        long, mask = renderer.tokens.encode(part.text, part.spans)
        assert ids.tolist() == long[mask].tolist()
        own = TOKENIZERS[family].encode(part.text, add_special_tokens=False)
        assert long.tolist() == own


@pytest.mark.parametrize("family", ["chatml", "gemma", "plain"])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(turns=st.lists(TEXTS.filter(lambda t: t == t.strip()), min_size=2, max_size=6))
def test_what_is_said_is_what_the_data_says(family: str, turns: list[str]) -> None:
    """Against a reading of the rendered text that knows nothing of the code under test."""
    if any(mark in "".join(turns) for mark in ("<|", "<start", "<end", ": ")):
        return
    parts = RENDERERS[family].render(read_row({"messages": chat(*turns)}))
    answers = [text + end_of(family) for text in turns[1::2]]
    assert [text for part in parts for text in part.said()] == answers


@settings(max_examples=40, deadline=None, derandomize=True)
@given(turns=st.lists(CONTENTS, min_size=2, max_size=5))
def test_the_short_way_on_a_real_tokenizer(smollm2_tokenizer: Any, turns: list[str]) -> None:
    renderer = ChatRenderer(smollm2_tokenizer)
    parts = renderer.render(read_row({"messages": chat(*turns)}))
    for part, ids in zip(parts, said_ids(renderer, parts), strict=True):
        whole = smollm2_tokenizer(part.text, add_special_tokens=False, return_offsets_mapping=True)
        inside = [
            token
            for token, (start, end) in zip(
                whole["input_ids"], whole["offset_mapping"], strict=True
            )
            if any(end > a and start < b for a, b in part.spans)
        ]
        assert ids.tolist() == inside


def test_the_short_way_is_taken_and_tokenises_less(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = RENDERERS["chatml"]
    parts = renderer.render(read_row({"messages": chat("x" * 500, "short", "y" * 500, "answer")}))
    pieces = list(renderer.tokens.pieces(parts[0].text, parts[0].spans))
    assert [piece[0] for piece in pieces] == [
        "<|im_start|>assistant\nshort<|im_end|>",
        "<|im_start|>assistant\nanswer<|im_end|>",
    ]


def test_overlapping_added_tokens_forbid_the_short_way() -> None:
    """A border may only be cut at if no other added token could swallow a part of it."""
    tokenizer = make_tokenizer("chatml")
    tokenizer.add_special_tokens({"additional_special_tokens": ["x<|im_start|>", "\n<|im"]})
    renderer = ChatRenderer(tokenizer)
    (part,) = renderer.render(read_row({"messages": chat("a", "b")}))
    pieces = list(renderer.tokens.pieces(part.text, part.spans))
    assert pieces == [(part.text, part.spans, None)]


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("mistral", "parts")])
def test_rendering_straight_gives_the_text_of_apply_chat_template(family: str) -> None:
    """After the first few, plain messages go straight to the compiled template."""
    tokenizer = make_tokenizer(family)
    template = ChatRenderer(tokenizer).template
    assert template is not None
    for number in range(30):
        messages = chat(*("x" * i + " {{ y }} é" for i in range(number % 4 + 1)), system="Be <b>.")
        for prompt in (False, True):
            own = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prompt
            )
            assert template.render([messages], add_generation_prompt=prompt, plain=True) == [own]
    assert template._runner._compared >= 16


def test_the_straight_way_is_left_when_it_gives_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vtrim_hf.template_runner import TemplateRunner

    monkeypatch.setattr(TemplateRunner, "_straight", lambda *_: ["wrong"])
    tokenizer = make_tokenizer("chatml")
    renderer = ChatRenderer(tokenizer)
    for _ in range(20):
        (part,) = renderer.render(read_row({"messages": chat("a", "b")}))
        assert part.said() == ("b<|im_end|>",)


def test_a_template_that_prints_json_of_its_content_gets_text() -> None:
    tokenizer = make_tokenizer("chatml")
    template = tokenizer.chat_template.replace(
        "(message.content or '')",
        "(message.content if message.content is string else message.content | tojson)",
    )
    row = {"messages": chat("a", "b")}
    row["messages"][1]["content"] = [{"type": "text", "text": "b"}]
    (part,) = ChatRenderer(tokenizer, chat_template=template).render(read_row(row))
    assert part.said() == ("b<|im_end|>",)


def test_a_very_long_conversation() -> None:
    turns = [f"turn {i}" for i in range(120)]
    texts = said("chatml", chat(*turns))
    assert texts == [f"turn {i}<|im_end|>" for i in range(1, 120, 2)]


def test_a_tokenizer_without_offsets(byte_tokenizer: Any) -> None:
    """Python tokenizers have no backend: ids are told apart by what they have in common."""

    class Slow:
        is_fast = False
        eos_token = byte_tokenizer.eos_token
        chat_template = byte_tokenizer.chat_template
        special_tokens_map = byte_tokenizer.special_tokens_map
        added_tokens_decoder = byte_tokenizer.added_tokens_decoder
        get_chat_template = byte_tokenizer.get_chat_template
        encode = byte_tokenizer.encode

    for turns in (("one", "First"), ("one", "First", "two", "Second"), ("a", "")):
        conversation = read_row({"messages": chat(*turns)})
        (slow,) = ChatRenderer(Slow()).encode(conversation)
        (fast,) = ChatRenderer(byte_tokenizer).encode(conversation)
        assert slow.input_ids.tolist() == fast.input_ids.tolist()
        assert slow.assistant_mask.tolist() == fast.assistant_mask.tolist()


def test_rows_with_the_targets_own_ids_train_on_these() -> None:
    tokenizer = TOKENIZERS["chatml"]
    row = {"messages": chat("one", "First"), "assistant_token_ids": [40, 41, 2]}
    (encoded,) = render_conversation(tokenizer, row)
    prompt = tokenizer.apply_chat_template(
        chat("one"), add_generation_prompt=True, return_dict=False
    )
    assert encoded.input_ids.tolist() == [*prompt, 40, 41, 2]
    assert encoded.assistant_mask.sum() == 3


def test_families_are_what_they_claim() -> None:
    for family, (template, _, _) in FAMILIES.items():
        end = end_of(family)
        assert family == "plain" or end in template or re.search("eos_token", template)
