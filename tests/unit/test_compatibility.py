"""Refusals: each says the rule, the value it got and the way out, and leaves everything as it
was."""

from __future__ import annotations

import copy
import functools
import itertools
import random
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessor,
    LogitsProcessorList,
    MambaConfig,
    MambaForCausalLM,
    MiniMaxConfig,
    MiniMaxForCausalLM,
    PreTrainedModel,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    RepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    T5Config,
    T5ForConditionalGeneration,
)

import vtrim_hf
from drafting import make_draft
from tiny_models import VOCAB_SIZE, make_byte_tokenizer, make_prompt, make_tiny
from vtrim_hf.compatibility import check_call, check_can_roll_back, check_pair
from vtrim_hf.vocabulary import DraftVocabulary

PROMPT = make_prompt()
TINY: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


@pytest.fixture
def target() -> PreTrainedModel:
    return make_tiny("llama")


@pytest.fixture
def draft(target: PreTrainedModel) -> Any:
    return make_draft(target, range(100))


def refusal(*words: str, target: Any, draft: Any, **call: Any) -> None:
    """Expect `check_call` to refuse with all the words, and change nothing."""
    models = (target, draft)
    before = [(m.config.to_dict(), m.generation_config.to_dict()) for m in models]
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"\w") as caught:
        check_call(target, draft, **{"input_ids": PROMPT, **call})
    for word in words:
        assert word in str(caught.value)
    assert [(m.config.to_dict(), m.generation_config.to_dict()) for m in models] == before
    assert torch.equal(torch.get_rng_state(), state)


def test_an_ordinary_call_passes(target: Any, draft: Any) -> None:
    check_pair(target, draft)
    check_call(target, draft)
    before = target.generation_config.to_dict()
    check_call(
        target,
        draft,
        input_ids=PROMPT,
        max_new_tokens=9,
        do_sample=True,
        temperature=0.3,
        num_beams=1,
        guidance_scale=1.0,
        assistant_model=draft,
        attention_mask=torch.ones_like(PROMPT),
        pixel_values=None,
        use_cache=True,
        logits_processor=LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.2)]),
    )
    assert target.generation_config.to_dict() == before
    assert vtrim_hf.check_call is check_call
    assert vtrim_hf.check_pair is check_pair


# Pairs.


def test_encoder_decoder(draft: Any) -> None:
    config = T5Config(
        vocab_size=VOCAB_SIZE, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2
    )
    other = T5ForConditionalGeneration(config)
    with pytest.raises(ValueError, match=r"decoder-only, but the target T5For.*pass its decoder"):
        check_pair(other, draft)
    with pytest.raises(ValueError, match="the draft T5For"):
        check_pair(draft, other)


def test_widths_of_a_trimmed_draft(draft: Any) -> None:
    wider = make_tiny("llama", vocab_size=384)
    message = (
        r"LlamaForCausalLM has a vocabulary of 384.*TrimmedDraft.* is made for 300.*vocab_size=384"
    )
    with pytest.raises(ValueError, match=message):
        check_pair(wider, draft)


def test_widths_of_plain_models(target: Any) -> None:  # transformers#30728
    other = make_tiny("mistral-sliding", vocab_size=320)
    other.config.name_or_path = "org/other"
    target.config.name_or_path = "org/target"
    message = (
        r"LlamaForCausalLM\(org/target\) has a vocabulary of 300, draft "
        r"MistralForCausalLM\(org/other\) is made for 320.*from_draft_model"
    )
    with pytest.raises(ValueError, match=message):
        check_pair(target, other)


def permuted(tokenizer: Any) -> Any:
    """The same tokens with two ids exchanged."""

    class Permuted:
        def get_vocab(self) -> dict[str, int]:
            swap = {70: 71, 71: 70}
            return {t: swap.get(i, i) for t, i in tokenizer.get_vocab().items()}

    return Permuted()


def test_tokenizers_of_one_size_and_other_ids(target: Any, draft: Any) -> None:  # llama.cpp#3812
    tokenizer = make_byte_tokenizer()
    check_pair(target, draft, tokenizer=tokenizer, draft_tokenizer=make_byte_tokenizer())
    names = tokenizer.convert_ids_to_tokens([70, 71])
    with pytest.raises(ValueError, match="share one tokenizer, but id 70 is") as caught:
        check_pair(target, draft, tokenizer=tokenizer, draft_tokenizer=permuted(tokenizer))
    assert all(repr(name) in str(caught.value) for name in names)
    assert "own family" in str(caught.value)


def test_tokenizer_that_lacks_ids(target: Any, draft: Any) -> None:
    tokenizer = make_byte_tokenizer()
    longer = make_byte_tokenizer()
    longer.add_tokens(["<new>"])
    with pytest.raises(ValueError, match="id 300 is None for the target and '<new>'"):
        check_pair(target, draft, tokenizer=tokenizer, draft_tokenizer=longer)


def test_tokenizer_other_than_the_one_the_draft_was_made_for(target: Any) -> None:
    tokenizer = make_byte_tokenizer()
    vocabulary = DraftVocabulary.from_ids(range(50), vocab_size=VOCAB_SIZE, tokenizer=tokenizer)
    draft = vtrim_hf.TrimmedDraftForCausalLM.from_draft_model(target, vocabulary)
    check_pair(target, draft, tokenizer=tokenizer)
    with pytest.raises(
        ValueError, match=f"made for the tokenizer {str(vocabulary.tokenizer_hash)[:12]}"
    ):
        check_pair(target, draft, tokenizer=permuted(tokenizer))
    refusal(
        "cut a draft with this tokenizer",
        target=target,
        draft=draft,
        tokenizer=permuted(tokenizer),
    )


RECURRENT = {
    "mamba": lambda: MambaForCausalLM(MambaConfig(**{**TINY, "state_size": 4})),
    "qwen3-next": lambda: Qwen3NextForCausalLM(
        Qwen3NextConfig(
            **{
                **TINY,
                "intermediate_size": 16,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 8,
                "num_experts": 2,
                "num_experts_per_tok": 1,
                "moe_intermediate_size": 8,
                "shared_expert_intermediate_size": 8,
                "linear_num_value_heads": 2,
                "linear_num_key_heads": 2,
                "linear_key_head_dim": 8,
                "linear_value_head_dim": 8,
                "layer_types": ["linear_attention", "full_attention"],
            }
        )
    ),
    "minimax": lambda: MiniMaxForCausalLM(
        MiniMaxConfig(
            **{
                **TINY,
                "intermediate_size": 16,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 8,
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
                "layer_types": ["linear_attention", "full_attention"],
            }
        )
    ),
}


@pytest.mark.parametrize("kind", RECURRENT)
def test_state_that_cannot_go_back(kind: str, draft: Any) -> None:  # mlx-lm#1109
    model = RECURRENT[kind]()
    with pytest.raises(
        ValueError, match=r"the target .* keeps a state in its layers \(linear_attention\)"
    ):
        check_pair(model, draft)
    with pytest.raises(ValueError, match=r"the draft .*full or sliding attention"):
        check_can_roll_back(model, "draft")
    with pytest.raises(ValueError, match="taken back"):
        make_draft(model, range(9))


def test_state_that_only_the_class_tells_of(target: Any, draft: Any) -> None:
    type(target)._is_stateful, before = True, type(target)._is_stateful
    try:
        with pytest.raises(ValueError, match="keeps a recurrent state"):
            check_pair(target, draft)
    finally:
        type(target)._is_stateful = before


@pytest.mark.parametrize("kinds", [["full_attention", "sliding_attention"], ["chunked_attention"]])
def test_layers_that_attend_can_go_back(target: Any, kinds: list[str]) -> None:
    target.config.layer_types = kinds
    check_can_roll_back(target, "target")


# Settings with which Transformers never reaches a draft.


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        pytest.param({"num_beams": 2}, ("num_beams=1", "got 2", "without the draft"), id="beams"),
        pytest.param(
            {"num_return_sequences": 3, "do_sample": True},
            ("num_return_sequences=1", "got 3", "once for each"),
            id="sequences [transformers#32165]",
        ),
        pytest.param({"use_cache": False}, ("use_cache=True",), id="no cache"),
        pytest.param(
            {"cache_implementation": "paged"},
            ("continuous batching", "leave cache_implementation unset"),
            id="continuous batching",
        ),
    ],
)
def test_asked_beforehand(
    target: Any, draft: Any, setting: dict[str, Any], words: tuple[str, ...]
) -> None:
    refusal(*words, target=target, draft=draft, **setting)
    if "cache_implementation" not in setting:
        config = GenerationConfig(**setting)
        refusal(*words, target=target, draft=draft, generation_config=config)


# Settings that would give other text.


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"guidance_scale": 1.5}, ("guidance_scale=1.5", "without assistant_model")),
        ({"cache_implementation": "quantized"}, ("'quantized'", "leave it unset")),
        ({"assistant_ensemble_weight": 0.5}, ("assistant_ensemble_weight=0.5", "unset it")),
        ({"prompt_lookup_num_tokens": 3}, ("prompt_lookup_num_tokens=3", "unset it")),
        ({"assistant_early_exit": 2}, ("assistant_early_exit=2", "unset it")),
        ({"use_mtp": True}, ("use_mtp=True", "unset it")),
        ({"speculation_type": "dflash"}, ("speculation_type='dflash'", "unset it")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings(
    target: Any, draft: Any, setting: dict[str, Any], words: tuple[str, ...]
) -> None:
    refusal(*words, target=target, draft=draft, **setting)


@pytest.mark.parametrize(
    "setting",
    [
        {"guidance_scale": 1.5},
        {"assistant_ensemble_weight": 0.5},
        {"prompt_lookup_num_tokens": 3},
        {"assistant_early_exit": 1},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_settings_in_generate(target: Any, draft: Any, setting: dict[str, Any]) -> None:
    """The same refusal inside the call, before the target or the draft has run once."""
    ran = []
    for model in (target, draft.body):
        model.register_forward_pre_hook(lambda *_: ran.append(1))
    before = copy.deepcopy((target.generation_config.to_dict(), draft.generation_config.to_dict()))
    with pytest.raises(ValueError, match=next(iter(setting))):
        target.generate(PROMPT, max_new_tokens=4, assistant_model=draft, **setting)
    assert ran == []
    assert (target.generation_config.to_dict(), draft.generation_config.to_dict()) == before


# Inputs.


def test_batches(target: Any, draft: Any) -> None:  # transformers#32165
    words = ("one prompt at a time", "a batch of 2", "in a loop")
    refusal(*words, target=target, draft=draft, input_ids=make_prompt(batch=2))
    with pytest.raises(ValueError, match="a batch of 2"):
        target.generate(make_prompt(batch=2), max_new_tokens=4, assistant_model=draft)


def test_embeddings(target: Any, draft: Any) -> None:  # transformers#35450
    embeddings = target.get_input_embeddings()(PROMPT)
    refusal(
        "got inputs_embeds", "pass input_ids", target=target, draft=draft, inputs_embeds=embeddings
    )
    with pytest.raises(ValueError, match="got inputs_embeds"):
        target.generate(inputs_embeds=embeddings, max_new_tokens=4, assistant_model=draft)


def test_empty_prompt(target: Any, draft: Any) -> None:
    empty = PROMPT[:, :0]
    refusal("at least one token", "bos", target=target, draft=draft, input_ids=empty)


@pytest.mark.parametrize(
    "name", ["pixel_values", "image_sizes", "video_grid_thw", "audio_values", "input_features"]
)
def test_other_modalities(target: Any, draft: Any, name: str) -> None:  # transformers#35450
    words = (f"text only, got {name}", "leave assistant_model out")
    refusal(*words, target=target, draft=draft, model_kwargs={name: torch.ones(1)})
    check_call(target, draft, input_ids=PROMPT, model_kwargs={name: None})


def test_shape_of_the_mask(target: Any, draft: Any) -> None:
    mask = torch.ones(1, 1, 12, 12)
    words = ("[1, length]", "[1, 1, 12, 12]")
    refusal(*words, target=target, draft=draft, model_kwargs={"attention_mask": mask})


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_filled_cache(target: Any, draft: Any, name: str) -> None:
    cache = DynamicCache(config=target.config)
    check_call(target, draft, input_ids=PROMPT, model_kwargs={name: cache})
    cache.update(torch.ones(1, 2, 7, 12), torch.ones(1, 2, 7, 12), 0)
    words = ("empty cache", "7 tokens", "whole conversation as input_ids")
    refusal(*words, target=target, draft=draft, model_kwargs={name: cache})


def test_position_table_of_the_draft(target: Any) -> None:  # sglang#6783
    other = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCAB_SIZE, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    )
    draft = make_draft(other, range(20))
    words = ("position table of 32", "may reach 33", "lower max_new_tokens", "rotary")
    refusal(*words, target=target, draft=draft, max_new_tokens=21)
    refusal(*words, target=target, draft=draft, max_length=33)
    check_call(target, draft, input_ids=PROMPT, max_new_tokens=20)
    assert target.generate(PROMPT, max_new_tokens=20, assistant_model=draft).shape == (1, 32)
    with pytest.raises(ValueError, match="position table of 32"):
        target.generate(PROMPT, max_new_tokens=21, assistant_model=draft)


def test_rotary_draft_goes_as_far_as_the_target(target: Any) -> None:
    draft = make_draft(make_tiny("llama", max_position_embeddings=16), range(50))
    check_call(target, draft, input_ids=PROMPT, max_new_tokens=100)
    plain = target.generate(PROMPT, max_new_tokens=30)
    assert torch.equal(target.generate(PROMPT, max_new_tokens=30, assistant_model=draft), plain)


# Processors with and without a memory.


class Base(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.work(input_ids)
        return scores

    def work(self, ids: torch.Tensor) -> None: ...


class Counter(Base):
    def __init__(self) -> None:
        self.calls = 0

    def work(self, ids: torch.Tensor) -> None:
        self.calls += 1


class ListKeeper(Base):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def work(self, ids: torch.Tensor) -> None:
        self.seen.append(ids.shape[1])


class DequeKeeper(Base):
    def __init__(self) -> None:
        self.seen: deque[int] = deque([0], maxlen=1)

    def work(self, ids: torch.Tensor) -> None:
        self.seen.append(ids.shape[1])


class TensorKeeper(Base):
    def __init__(self) -> None:
        self.total = torch.zeros(3)

    def work(self, ids: torch.Tensor) -> None:
        self.total += 1


class ArrayKeeper(Base):
    def __init__(self) -> None:
        self.total = np.zeros((2, 2))

    def work(self, ids: torch.Tensor) -> None:
        self.total[0] += 1


class NewAttribute(Base):
    def work(self, ids: torch.Tensor) -> None:
        self.last = ids.shape[1]


class Slotted:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return scores


class Grammar:
    """What a constrained decoder walks along; native ones cannot be copied."""

    def __init__(self) -> None:
        self.position = [0]
        self.parent = self  # and knows itself

    def advance(self) -> None:
        self.position[0] += 1


class GrammarKeeper(Base):
    def __init__(self) -> None:
        self.grammar = Grammar()

    def work(self, ids: torch.Tensor) -> None:
        self.grammar.advance()


class NativeGrammar(Base):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class GeneratorKeeper(Base):
    def __init__(self) -> None:
        self.numbers = (n for n in range(9))

    def work(self, ids: torch.Tensor) -> None:
        next(self.numbers)


class IteratorKeeper(Base):
    def __init__(self) -> None:
        self.numbers = iter([1, 2, 3])

    def work(self, ids: torch.Tensor) -> None:
        next(self.numbers)


class TorchRandom(Base):
    def __init__(self) -> None:
        self.generator = torch.Generator()

    def work(self, ids: torch.Tensor) -> None:
        torch.rand(1, generator=self.generator)


class PythonRandom(Base):
    def __init__(self) -> None:
        self.generator = random.Random(1)

    def work(self, ids: torch.Tensor) -> None:
        self.generator.random()


class NumpyRandom(Base):
    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def work(self, ids: torch.Tensor) -> None:
        self.generator.random()


def counting_function() -> Any:
    calls = 0

    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return scores

    return processor


def partial_of_a_list() -> Any:
    def processor(seen: list[int], input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return scores

    return functools.partial(processor, [])


STATEFUL: dict[str, Any] = {
    "counter": Counter,
    "list": ListKeeper,
    "deque": DequeKeeper,
    "tensor": TensorKeeper,
    "array": ArrayKeeper,
    "new attribute": NewAttribute,
    "slots": Slotted,
    "grammar": GrammarKeeper,
    "uncopyable": NativeGrammar,
    "generator": GeneratorKeeper,
    "iterator": IteratorKeeper,
    "torch random": TorchRandom,
    "python random": PythonRandom,
    "numpy random": NumpyRandom,
    "function": counting_function,
    "method": lambda: Counter().__call__,
    "partial": partial_of_a_list,
    "transformers' own": lambda: SynthIDTextWatermarkLogitsProcessor(
        ngram_len=2,
        keys=[3, 5],
        sampling_table_size=8,
        sampling_table_seed=0,
        context_history_size=4,
        device=torch.device("cpu"),
    ),
}


@pytest.mark.parametrize("kind", STATEFUL)
def test_processor_with_a_memory(target: Any, draft: Any, kind: str) -> None:
    processor = STATEFUL[kind]()
    words = ("the logits processor", "taken back", "arguments only", "leave assistant_model out")
    refusal(*words, target=target, draft=draft, logits_processor=[processor])
    refusal(
        *words,
        target=target,
        draft=draft,
        generation_config=GenerationConfig(),
        **{
            "logits_processor": LogitsProcessorList(
                [RepetitionPenaltyLogitsProcessor(1.1), processor]
            )
        },
    )
    if isinstance(processor, Counter):
        assert processor.calls == 0  # a copy was asked, not the thing itself
        refusal("Counter", target=target, draft=draft, logits_processor=[processor])
    if kind == "function":
        assert processor.__closure__[0].cell_contents == 0


def test_processor_with_a_memory_in_generate(target: Any, draft: Any) -> None:
    processor = Counter()
    with pytest.raises(ValueError, match="Counter changes its own state"):
        target.generate(
            PROMPT, max_new_tokens=4, assistant_model=draft, logits_processor=[processor]
        )
    assert processor.calls == 0


class Holder(Base):
    """Holds things without changing them; `deep` is reached through another object."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


class Scorer(Base):
    """Runs a model that it holds, deep inside a list."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.models = [{"deep": Holder(model=model)}]
        self.calls: list[int] = []

    def work(self, ids: torch.Tensor) -> None:
        with torch.no_grad():
            self.models[0]["deep"].model(ids)  # type: ignore[attr-defined]


class Uncopyable(torch.nn.Linear):
    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("a model must not be copied")


class Noisy(Base):
    """Draws from the global generator, as sampling itself does; nothing is remembered."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores + torch.rand_like(scores)


def stateless_function(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores * 2


def enclosing_function() -> Any:
    table = torch.ones(VOCAB_SIZE)

    def processor(
        input_ids: torch.Tensor, scores: torch.Tensor, *, by: float = 1.0
    ) -> torch.Tensor:
        return scores + table * by if len(input_ids) else late

    if len(table) < 0:
        late = table  # enclosed, and never assigned
    return processor


STATELESS: dict[str, Any] = {
    "nothing held": Base,
    "function": lambda: stateless_function,
    "closure": enclosing_function,
    "lambda": lambda: lambda ids, scores: scores,
    "method": lambda: Base().__call__,
    "partial": lambda: functools.partial(enclosing_function(), by=2.0),
    "tensors": lambda: Holder(table=torch.tensor([1.0, float("nan"), -float("inf")]), flag=True),
    "arrays": lambda: Holder(
        one=np.arange(6).reshape(2, 3), none=np.zeros(0), nan=np.full(2, np.nan)
    ),
    "objects": lambda: Holder(grammar=Grammar(), kinds={int, str}, text="x", pair=(1, [2])),
    "a model": lambda: Holder(model=Uncopyable(2, 2)),
    "a model deep inside": lambda: Holder(deep=[{"a": Holder(model=Uncopyable(2, 2))}]),
    "a model that runs": lambda: Scorer(make_tiny("llama")),
    "a tokenizer": lambda: Holder(tokenizer=make_byte_tokenizer()),
    "a random generator at rest": lambda: Holder(
        rng=random.Random(0), np=np.random.default_rng(0)
    ),
    "an iterator at rest": lambda: Holder(numbers=itertools.cycle([1, 2])),
    "noise": Noisy,
    "slots": lambda: type("Empty", (), {"__slots__": (), "__call__": lambda s, i, x: x})(),
}


@pytest.mark.filterwarnings("ignore:.*itertools:DeprecationWarning")
@pytest.mark.parametrize("kind", STATELESS)
def test_processor_without_a_memory(target: Any, draft: Any, kind: str) -> None:
    processor = STATELESS[kind]()
    state = torch.get_rng_state()
    check_call(target, draft, input_ids=PROMPT, logits_processor=[processor])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("other", [None, "org/model", torch.nn.Linear(2, 2)])
def test_what_is_no_loaded_model_is_refused(target: Any, draft: Any, other: Any) -> None:
    with pytest.raises(TypeError, match=r"the target must be a loaded .* model, got .*load it"):
        check_pair(other, draft)
    with pytest.raises(TypeError, match=r"the draft must be a loaded .* model, got .*load it"):
        check_pair(target, other)
    with pytest.raises(TypeError, match="the draft must be a loaded"):
        check_call(target, other)
