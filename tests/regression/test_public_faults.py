"""Faults that users of other projects reported in public, each held off by one test.

The thread is in the test's id. These are about the map, loading, the model, its loss and its
files; faults of drafting inside `generate` are in `test_public_faults_generation.py`, those of
counting and searching in the unit tests of their modules. Greedy text cannot show a wrong map, so
wherever ids are concerned the ids themselves, or acceptance, are looked at.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig

from tiny_models import make_prompt, make_tiny, perturbed
from vtrim_hf import DraftVocabulary, TrimmedDraftForCausalLM, check_pair
from vtrim_hf.vocabulary import tokenizer_fingerprint

KEPT = [5, 8, 11, 40, 99, 180, 299]
OTHER = [5, 8, 12, 40, 99, 180, 299]


def trim(model, ids=KEPT, width=None, **kwargs) -> TrimmedDraftForCausalLM:
    width = width or model.config.get_text_config().vocab_size
    vocabulary = DraftVocabulary.from_ids(list(ids), vocab_size=width)
    return TrimmedDraftForCausalLM.from_draft_model(model, vocabulary, **kwargs)


def fault(*threads: str):
    """Give the test the threads that it answers for as its id."""
    return pytest.mark.parametrize("thread", [", ".join(threads)], ids=str)


@pytest.fixture
def folder(tiny_llama, tmp_path):
    trim(tiny_llama).save_pretrained(tmp_path)
    return tmp_path


def tamper(folder, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


# The map


@fault("NVIDIA-NeMo/Automodel#2447")
def test_the_map_is_part_of_the_weights(thread, folder, tiny_llama):
    ids = make_prompt(6)
    draft, loaded = trim(tiny_llama), TrimmedDraftForCausalLM.from_pretrained(folder)
    assert loaded.kept_ids.tolist() == KEPT != list(range(len(KEPT)))
    assert torch.equal(loaded(ids).logits, draft(ids).logits)
    tamper(folder, lambda tensors: tensors.pop("kept_ids"))
    with pytest.raises(ValueError, match="lack kept_ids"):
        TrimmedDraftForCausalLM.from_pretrained(folder)


@fault("huggingface/transformers#48892", "macwiatrak/Bacformer#36")
def test_no_buffer_holds_what_lay_in_memory(thread, tiny_target, tmp_path):
    """Not the table alone: rotary frequencies and embedding scales are no part of the file."""
    draft = trim(tiny_target)
    draft.save_pretrained(tmp_path)
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path)
    buffers = dict(draft.named_buffers())
    assert len(buffers) > 1
    for name, value in loaded.named_buffers():
        assert torch.equal(value, buffers[name]), name


@fault("sgl-project/SpecForge#534", "vllm-project/speculators#269")
def test_training_leaves_the_map_alone(thread, tiny_llama, tmp_path):
    draft = trim(tiny_llama)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=0.01)
    for seed in range(3):  # a corpus with other frequencies than the vocabulary's
        ids = make_prompt(12, seed=seed) % 60
        draft(ids, labels=ids).loss.backward()
        optimizer.step()
    draft.save_pretrained(tmp_path)
    assert TrimmedDraftForCausalLM.from_pretrained(tmp_path).kept_ids.tolist() == KEPT
    assert "kept_ids" not in dict(draft.named_parameters())


@fault("sgl-project/SpecForge#764")
def test_a_map_of_one_size_and_other_ids_is_refused(thread, folder, tiny_llama):
    ours, theirs = (trim(tiny_llama, ids).vocabulary.fingerprint[:12] for ids in (KEPT, OTHER))
    tamper(folder, lambda tensors: tensors.update(kept_ids=torch.tensor(OTHER)))
    with pytest.raises(ValueError, match=f"{theirs}.*{ours}"):
        TrimmedDraftForCausalLM.from_pretrained(folder)


@fault("verl-project/verl-SpeCo#66")
def test_without_ids_nothing_is_the_first_k(thread, tiny_llama, tmp_path):
    bare = TrimmedDraftForCausalLM(trim(tiny_llama).config).eval()
    for use in (
        lambda: bare(make_prompt(3)),
        lambda: tiny_llama.generate(make_prompt(3), assistant_model=bare, max_new_tokens=8),
        lambda: bare.save_pretrained(tmp_path),
        lambda: bare.vocabulary,
    ):
        with pytest.raises(ValueError, match="position 0 id -1 lies outside"):
            use()


@fault("mobilint/mblt-model-zoo#110")
@pytest.mark.parametrize(
    ("table", "named"),
    [
        ([-1, *KEPT[1:]], "position 0 id -1"),
        ([*KEPT[:-1], 300], "position 6 id 300"),
        ([5, 8, 8, *KEPT[3:]], "position 2 id 8 repeats"),
        ([8, 5, *KEPT[2:]], "position 1 id 5 comes after the larger"),
    ],
    ids=["negative", "at the width", "duplicate", "unsorted"],
)
def test_a_bad_table_is_refused_when_made_and_when_loaded(thread, table, named, folder):
    with pytest.raises(ValueError, match=named):
        DraftVocabulary(torch.tensor(table), 300)
    tamper(folder, lambda tensors: tensors.update(kept_ids=torch.tensor(table)))
    with pytest.raises(ValueError, match=named):
        TrimmedDraftForCausalLM.from_pretrained(folder)


@fault("pangoleen/qwen3.8-flash-next-dgx-spark#1", "vllm-project/vllm#24506")
def test_a_vocabulary_is_never_larger_than_what_occurs(thread):
    counts = np.zeros(3000, dtype=np.int64)
    counts[:500] = 1
    with pytest.raises(ValueError, match="to 502 ids"):
        DraftVocabulary.from_counts(counts, 600, required=(2000, 2001))
    assert len(DraftVocabulary.from_counts(counts, 502, required=(2000, 2001))) == 502


@fault("vllm-project/vllm-ascend#16166", "vllm-project/vllm-ascend#15863")
@pytest.mark.parametrize("sample", [False, True])
def test_every_way_to_get_ids_maps_them(thread, sample, tiny_llama):
    kept = [5, 8, 11]
    draft = trim(tiny_llama, kept)
    draft.generation_config.assistant_confidence_threshold = 0.0
    ids = make_prompt(5)
    said = draft.generate(ids, max_new_tokens=10, do_sample=sample)[0, 5:]
    assert set(said.tolist()) <= set(kept)
    proposed: list[int] = []
    make = draft.make_candidate_generator

    def spy(**call):
        generator = make(**call)
        propose = generator.get_candidates

        def get_candidates(input_ids, **inputs):
            candidates, scores = propose(input_ids, **inputs)
            proposed.extend(candidates[0, input_ids.shape[1] :].tolist())
            return candidates, scores

        generator.get_candidates = get_candidates
        return generator

    draft.make_candidate_generator = spy
    tiny_llama.generate(ids, assistant_model=draft, max_new_tokens=10, do_sample=sample)
    assert len(proposed) > 5
    assert set(proposed) <= set(kept)


@fault("huggingface/transformers#45307", "vllm-project/vllm#5203", "vllm-project/vllm#13849")
def test_one_tokenizer_and_two_paddings_make_a_pair(thread):
    source = make_tiny("llama", vocab_size=320)
    target = make_tiny("llama", vocab_size=384)
    with torch.no_grad():  # the same model but for its padding
        for name, value in source.state_dict().items():
            target.state_dict()[name][: len(value)].copy_(value)
    draft = trim(source, [i for i in range(300) if i % 7], width=384)
    draft.generation_config.assistant_confidence_threshold = 0.0
    check_pair(target, draft)
    ids = make_prompt(6)
    assert draft(ids).logits.shape[-1] == 384
    plain = target.generate(ids, max_new_tokens=30)
    passes: list[int] = []
    target.register_forward_hook(lambda *args: passes.append(1))
    assert torch.equal(target.generate(ids, max_new_tokens=30, assistant_model=draft), plain)
    assert len(passes) < 24, "accepted, so the ids are the right ones"
    target.generate(ids, max_new_tokens=30, assistant_model=draft, do_sample=True)


@fault("ggml-org/llama.cpp#3812", "sgl-project/sglang#23838", "SafeAILab/EAGLE#258")
def test_one_size_and_other_tokenizers_are_told_apart(thread, tiny_llama, byte_tokenizer):
    table = byte_tokenizer.get_vocab()
    swapped = SimpleNamespace(get_vocab=lambda: {**table, "a": table["b"], "b": table["a"]})
    assert tokenizer_fingerprint(swapped) != tokenizer_fingerprint(byte_tokenizer)
    words = DraftVocabulary.from_ids(KEPT, vocab_size=300, tokenizer=byte_tokenizer)
    draft = TrimmedDraftForCausalLM.from_draft_model(tiny_llama, words)
    check_pair(tiny_llama, draft, tokenizer=byte_tokenizer)
    with pytest.raises(ValueError, match="made for the tokenizer"):
        check_pair(tiny_llama, draft, tokenizer=swapped)


@fault("xLLM-AI/xllm#1328", "ggml-org/llama.cpp#29143")
def test_the_two_sizes_are_never_mixed(thread, tiny_target, tmp_path):
    width = tiny_target.config.get_text_config().vocab_size
    tiny_target.save_pretrained(tmp_path / "source")
    vocabulary = DraftVocabulary.from_ids(KEPT, vocab_size=width)
    made = trim(tiny_target)
    made.save_pretrained(tmp_path / "draft")
    for draft in (
        made,
        trim(tiny_target, layers=1),
        TrimmedDraftForCausalLM.from_draft_model(tmp_path / "source", vocabulary),
        TrimmedDraftForCausalLM.from_pretrained(tmp_path / "draft"),
        AutoModelForCausalLM.from_pretrained(tmp_path / "draft"),
        TrimmedDraftForCausalLM(made.config),
    ):
        assert draft.config.vocab_size == draft.config.get_text_config().vocab_size == width
        assert draft.config.draft_vocab_size == draft.lm_head.out_features == len(KEPT)
        assert draft.get_input_embeddings().num_embeddings == width


# Loading


@fault("huggingface/transformers#48154", "ggml-org/llama.cpp#29143")
@pytest.mark.parametrize("kind", ["gemma-softcap", "qwen-padded"])
def test_a_tied_source_cannot_take_the_heads_place(thread, kind, tmp_path):
    source = make_tiny(kind)
    assert source.config.tie_word_embeddings
    trim(source).save_pretrained(tmp_path)
    place = tmp_path / "config.json"
    facts = json.loads(place.read_text())
    facts["tie_word_embeddings"] = facts["body_config"]["tie_word_embeddings"] = True
    place.write_text(json.dumps(facts))
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path)
    loaded.tie_weights()
    assert torch.equal(loaded.lm_head.weight, source.get_output_embeddings().weight[KEPT])
    assert loaded.lm_head.weight.data_ptr() != loaded.get_input_embeddings().weight.data_ptr()


@fault("vllm-project/speculators (model.py:193)")
def test_what_is_frozen_stays_frozen_over_a_reload(thread, tiny_llama, tmp_path):
    draft = trim(tiny_llama)
    draft.get_input_embeddings().requires_grad_(False)
    draft.save_pretrained(tmp_path)
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path)
    before = loaded.get_input_embeddings().weight.clone()
    optimizer = torch.optim.SGD(loaded.parameters(), lr=0.1)
    ids = torch.tensor([KEPT])
    loaded(ids, labels=ids).loss.backward()
    optimizer.step()
    assert torch.equal(loaded.get_input_embeddings().weight, before)
    assert not torch.equal(loaded.lm_head.weight, draft.lm_head.weight)


# Loss and training


@fault("huggingface/transformers#36840", "SafeAILab/EAGLE#248")
def test_labels_outside_the_vocabulary_do_not_spoil_the_loss(thread, tiny_llama):
    draft = trim(tiny_llama)
    ids = make_prompt(7)
    labels = torch.tensor([[5, 8, 100, 11, 40, 101, 99]])
    output = draft(ids, labels=labels)
    rows = torch.tensor([KEPT.index(i) if i in KEPT else -100 for i in labels[0, 1:].tolist()])
    scores = output.logits[0, :-1][:, KEPT]
    torch.testing.assert_close(output.loss, torch.nn.functional.cross_entropy(scores, rows))
    assert output.ignored_labels == 2
    output = draft(ids, labels=torch.full_like(labels, 100))
    output.loss.backward()
    assert output.loss == 0
    assert draft.lm_head.weight.grad.isfinite().all()


@fault("huggingface/transformers#47688", "huggingface/transformers#35438", "huggingface/trl#5710")
def test_the_loss_does_not_grow_with_accumulation(thread, tiny_llama):
    draft = trim(tiny_llama)
    ids = torch.tensor(KEPT)[make_prompt(6, batch=8) % len(KEPT)]
    labels = ids.clone()
    labels[::3, 2:] = -100
    items = (labels[:, 1:] != -100).sum()
    gradients = []
    for parts in (1, 4):
        draft.zero_grad()
        for some, wanted in zip(ids.chunk(parts), labels.chunk(parts), strict=True):
            draft(some, labels=wanted, num_items_in_batch=items).loss.backward()
        gradients.append(draft.lm_head.weight.grad.clone())
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)
    assert gradients[0].abs().max() > 1e-3


@fault("vllm-project/speculators#574", "NVIDIA-NeMo/Automodel#2399")
@pytest.mark.parametrize(
    "scaling",
    [
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    ],
    ids=["llama3", "yarn"],
)
def test_rope_scaling_is_kept_whole(thread, scaling, tmp_path):
    source = make_tiny("llama", rope_parameters={"rope_theta": 5e5, **scaling})
    plain = make_tiny("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    trim(source, layers=1).save_pretrained(tmp_path)
    loaded = TrimmedDraftForCausalLM.from_pretrained(tmp_path).body.model.rotary_emb
    expected = source.model.rotary_emb
    assert torch.equal(loaded.inv_freq, expected.inv_freq)
    assert loaded.attention_scaling == expected.attention_scaling
    assert not torch.equal(expected.inv_freq, plain.model.rotary_emb.inv_freq)


# The model's interface


@fault("huggingface/transformers#44816", "huggingface/transformers#39336")
@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_both_names_of_the_cache_are_understood(thread, name, tiny_target):
    draft = trim(tiny_target)
    ids = make_prompt(8)
    with torch.no_grad():
        first = draft(ids[:, :7], use_cache=True)
        state = getattr(first, "cache", None) or first.past_key_values
        step = draft(ids[:, 7:], **{name: state}).logits[:, -1, KEPT]
    torch.testing.assert_close(step, draft(ids).logits[:, -1, KEPT], rtol=1e-4, atol=1e-4)


@fault("huggingface/trl#2770", "huggingface/transformers#35629", "linkedin/Liger-Kernel#694")
@pytest.mark.parametrize("training", [False, True])
def test_the_head_sees_the_positions_that_are_kept(thread, training, tiny_llama):
    draft = trim(tiny_llama).train(training)
    seen: list[int] = []
    draft.lm_head.register_forward_hook(lambda module, args, output: seen.append(args[0].shape[1]))
    assert draft(make_prompt(9), logits_to_keep=1).logits.shape[1] == 1
    assert seen == [1]


@fault("vllm-project/vllm#53458", "vllm-project/speculators#200")
def test_a_full_vocabulary_pays_for_no_map(thread, tiny_llama):
    draft = trim(tiny_llama, range(300))
    outputs: list[torch.Tensor] = []
    draft.lm_head.register_forward_hook(lambda module, args, output: outputs.append(output))
    assert draft(make_prompt(3)).logits.data_ptr() == outputs[0].data_ptr()
    assert "kept_ids" not in draft.state_dict()


@fault("PrimeIntellect-ai/prime-rl#1998", "LG-AI-EXAONE/EXAONE-3.5#7")
def test_tied_keys_are_what_transformers_5_expects(thread, folder):
    assert isinstance(TrimmedDraftForCausalLM._tied_weights_keys, dict)
    loaded = TrimmedDraftForCausalLM.from_pretrained(folder)
    loaded.save_pretrained(folder)


@fault("huggingface/transformers#45759", "linkedin/Liger-Kernel#1214")
def test_no_nested_config_takes_over_the_size(thread, folder):
    place = folder / "config.json"
    facts = json.loads(place.read_text())
    place.write_text(json.dumps({**facts, "text_config": {"vocab_size": 22}}))
    loaded = TrimmedDraftForCausalLM.from_pretrained(folder)
    assert loaded.config.get_text_config() is loaded.config
    assert loaded.config.get_text_config(decoder=True).vocab_size == 300


@fault("huggingface/transformers#36695")
def test_the_callers_model_is_never_cut_in_place(thread, tiny_llama):
    head = tiny_llama.lm_head
    weight = head.weight.clone()
    draft = trim(perturbed(tiny_llama, 0.01))
    again = trim(tiny_llama)
    tiny_llama.generate(make_prompt(4), assistant_model=draft, max_new_tokens=9, do_sample=True)
    assert tiny_llama.lm_head is head
    assert torch.equal(head.weight, weight)
    assert again.lm_head is not head


# Files


@fault("huggingface/transformers#29714", "huggingface/transformers#46876")
def test_what_is_saved_brings_its_code_along(thread, folder):
    """Where the package is absent: tests/integration/test_shipped_code.py runs it."""
    facts = json.loads((folder / "config.json").read_text())
    for reference in facts["auto_map"].values():
        module, name = reference.split(".")
        assert f"class {name}(" in (folder / f"{module}.py").read_text()
    assert "auto_map" not in facts["body_config"], "the body is found without a stray reference"


@fault("huggingface/transformers#29988", "QwenLM/Qwen3-ASR#210")
def test_an_invalid_generation_config_is_not_inherited(thread, tiny_llama, tmp_path):
    tiny_llama.generation_config = GenerationConfig(temperature=0.7, do_sample=False)
    trim(tiny_llama, target=tiny_llama).save_pretrained(tmp_path)
    assert "temperature" not in json.loads((tmp_path / "generation_config.json").read_text())
