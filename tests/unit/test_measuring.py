"""Measuring: counts are exact, parts sum up, everything is put back, the report is plain."""

from __future__ import annotations

import copy
import json
import time
import warnings
from typing import Any

import pytest
import torch
from transformers.generation.candidate_generator import CandidateGenerator

from drafting import make_eagle, teach
from tiny_models import make_prompt, make_tiny
from vtrim_hf import eagle_session, eagle_step
from vtrim_hf.decode_entry import Spread
from vtrim_hf.decode_report import DecodeReport
from vtrim_hf.decoding_meter import PARTS, CallTally, metered, unwrapped
from vtrim_hf.decoding_prompts import prepare_prompts
from vtrim_hf.decoding_runs import first_difference
from vtrim_hf.decoding_ways import _cast_copy, plain_ways
from vtrim_hf.drafting_rates import seconds_of
from vtrim_hf.measuring import NoGainWarning, measure_decoding
from vtrim_hf.modeling_trimmed_draft import TrimmedDraftForCausalLM
from vtrim_hf.vocabulary import DraftVocabulary

PROMPTS = [make_prompt(8, seed=seed) for seed in (4, 5, 6)]


@pytest.fixture(scope="module")
def report() -> DecodeReport:
    target = make_tiny("llama")
    return measure(target, make_tiny("llama", seed=3), compare={"same": target})


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """A target, and an EAGLE-3 draft that was taught what the target says on the first prompt."""
    target = make_tiny("llama")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        texts = [target.generate(prompt, max_new_tokens=16) for prompt in PROMPTS]
        kept = {token for text in texts for token in text[0, 8:].tolist()}
        draft = make_eagle(target, kept - {int(texts[0][0, 20])}, initializer_range=0.1)
        teach(draft, target, texts[0], passes=40)
    return target, draft


class ScriptedGenerator(CandidateGenerator):
    """Proposes what the script says, one list of ids a round, then nothing."""

    def __init__(self, script: list[list[int]]) -> None:
        self.script = [*script]
        self.fail_at: int | None = None
        self.round = 0

    def get_candidates(self, input_ids: torch.Tensor, **_: Any) -> tuple[Any, Any]:
        if self.round == self.fail_at:
            raise RuntimeError("out of memory")
        self.round += 1
        draft = torch.tensor([self.script.pop(0) if self.script else []], dtype=torch.long)
        return torch.cat([input_ids, draft], dim=1), None


def measure(target: Any, draft: Any, prompts: Any = PROMPTS, **arguments: Any) -> DecodeReport:
    """Measure quickly and quietly."""
    settings = {
        "max_new_tokens": 16,
        "warmup": 0,
        "plain_dtypes": (),
        "progress": False,
        "num_assistant_tokens": 3,
        "assistant_confidence_threshold": 0.0,
        **arguments,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoGainWarning)
        return measure_decoding(target, draft, prompts, **settings)


def plain_text(target: Any, prompt: torch.Tensor) -> list[int]:
    """What the target says alone."""
    mask = torch.ones_like(prompt)
    ids = target.generate(prompt, attention_mask=mask, max_new_tokens=16, do_sample=False)
    said: list[int] = ids[0, prompt.shape[1] :].tolist()
    return said


def scripted(
    target: Any, script: list[list[int]], *, length: int = 16, **kwargs: Any
) -> tuple[list[int], CallTally, ScriptedGenerator]:
    """Generate with a generator that follows the script; return the text and what was counted."""
    generator = ScriptedGenerator(script)
    target._get_candidate_generator = lambda **_: generator
    prompt = PROMPTS[0]
    with metered(target) as tally:
        ids = target.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=length,
            prompt_lookup_num_tokens=1,
            do_sample=False,
            **kwargs,
        )
    return ids[0, prompt.shape[1] :].tolist(), tally, generator


class TestCounts:
    def test_every_round_counts_as_it_went(self, tiny_llama: Any) -> None:
        said = plain_text(tiny_llama, PROMPTS[0])
        wrong = [(token + 1) % 300 for token in said]
        # two of three right (3 tokens said), no draft (1), three right (4), none right (1)
        script = [[*said[:2], wrong[2]], [], said[4:7], wrong[8:10]]
        text, tally, _ = scripted(tiny_llama, script)
        assert text == said
        assert tally.drafted == [3, 3, 2]
        assert tally.accepted == [2, 2, 1]
        assert tally.verified_drafts == 3
        assert tally.target_forwards == 4 + len(said[9:])
        assert sum(tally.proposed.values()) == 8

    def test_an_accepted_eos_counts_although_generate_says_it_does_not(
        self, tiny_llama: Any
    ) -> None:
        said = plain_text(tiny_llama, PROMPTS[0])
        eos = said[2]
        assert eos not in said[:2]
        text, tally, _ = scripted(tiny_llama, [said[:5]], eos_token_id=eos)
        assert text == said[:3]
        assert tally.accepted == [1, 1, 1, 0, 0]

    def test_a_draft_cut_at_the_length_counts_what_was_said(self, tiny_llama: Any) -> None:
        said = plain_text(tiny_llama, PROMPTS[0])
        text, tally, _ = scripted(tiny_llama, [said[:10]], length=4)
        assert text == said[:4]
        assert sum(tally.drafted) == 10
        assert sum(tally.accepted) == 4

    def test_a_prefill_without_draft_is_no_verification(self, tiny_llama: Any) -> None:
        said = plain_text(tiny_llama, PROMPTS[0])
        _, tally, _ = scripted(tiny_llama, [[], said[1:4]])
        assert tally.verified_drafts == 1
        assert tally.accepted == [1, 1, 1]

    def test_a_step_is_told_without_the_round_that_reads_the_prompt(self, tiny_llama: Any) -> None:
        """An EAGLE-3 draft reads it in the second round, after the target's first pass."""
        said = plain_text(tiny_llama, PROMPTS[0])
        for first in ([], said[:1]):
            at = 1 + len(first)
            _, tally, _ = scripted(tiny_llama, [first, said[at : at + 3], said[at + 4 : at + 6]])
            assert sum(tally.drafted) == len(first) + 5
            assert tally.step_tokens == (5 if first else 2)
            assert tally.step_seconds > 0

    def test_draft_equal_to_target_is_always_right(self, tiny_target: Any) -> None:
        report = measure(tiny_target, copy.deepcopy(tiny_target), compare={"itself": tiny_target})
        for entry in (report.draft, report.entries["itself"]):
            assert entry.acceptance_rate == 1.0
            assert entry.acceptance_length == 4.0  # 16 tokens are four whole rounds of 3 + 1
            assert entry.acceptance_by_position == (1.0, 1.0, 1.0)
            assert entry.target_forwards == 4 * len(PROMPTS)
        # The pass over the prompt is a verification, too: each one checks three.
        assert [*seconds_of(report, "draft")["forward"]] == [1, 4]
        assert report.identical is True
        assert report.identical_dtype == "float32"

    def test_acceptance_length_is_a_ratio_of_sums(self, tiny_llama: Any) -> None:
        noisy = copy.deepcopy(tiny_llama)
        with torch.no_grad():
            noisy.lm_head.weight += torch.randn_like(noisy.lm_head.weight) * 0.3
        report = measure(tiny_llama, noisy)
        cells = [row["entries"]["draft"] for row in report.rows]
        accepted = sum(sum(cell["accepted"]) for cell in cells)
        verified = sum(cell["verified_drafts"] for cell in cells)
        assert 0 < accepted < sum(sum(cell["drafted"]) for cell in cells)
        assert report.acceptance_length == 1 + accepted / verified
        assert sum(report.draft.acceptance_by_position) == pytest.approx(accepted / verified)

    def test_sampling_is_counted_and_not_compared(self, tiny_llama: Any) -> None:
        before = torch.get_rng_state()
        report = measure(tiny_llama, copy.deepcopy(tiny_llama), do_sample=True)
        assert report.identical is None
        assert report.acceptance_rate == 1.0  # the two distributions are the same
        assert torch.equal(torch.get_rng_state(), before)


class TestTrimmedDraft:
    def test_says_which_tokens_the_draft_lacks(self, tiny_llama: Any, byte_tokenizer: Any) -> None:
        said = [token for prompt in PROMPTS for token in plain_text(tiny_llama, prompt)]
        lost = set(said[3:5])
        kept = [token for token in range(300) if token not in lost]
        vocabulary = DraftVocabulary.from_ids(kept, vocab_size=300)
        draft = TrimmedDraftForCausalLM.from_draft_model(tiny_llama, vocabulary)
        report = measure(tiny_llama, draft, tokenizer=byte_tokenizer)
        entry = report.draft
        assert entry.facts["draft_vocab_size"] == len(kept)
        assert entry.facts["vocab_size"] == 300
        counted = sum(said.count(token) for token in lost)
        assert entry.oov_share == counted / len(said)
        assert {token["id"] for token in entry.oov_tokens} == lost
        assert {token["text"] for token in entry.oov_tokens} == {
            byte_tokenizer.decode([token]) for token in lost
        }
        assert entry.acceptance_rate is not None
        assert 0 < entry.acceptance_rate < 1
        assert entry.drafted_outside_vocabulary == 0
        assert report.identical is True
        assert entry.seconds_by_part["draft_head"] > 0

    def test_an_unmapped_draft_shows_in_acceptance_and_membership(self, tiny_llama: Any) -> None:
        """[vllm-ascend#16166] the text stays right, so only acceptance and ids can tell."""
        kept = torch.arange(3, 299, 2)
        vocabulary = DraftVocabulary.from_ids(kept, vocab_size=300)
        good = TrimmedDraftForCausalLM.from_draft_model(tiny_llama, vocabulary)
        report = measure(tiny_llama, good)
        assert report.draft.drafted_outside_vocabulary == 0
        unmapped = copy.deepcopy(tiny_llama)
        unmapped.set_output_embeddings(good.get_output_embeddings())
        unmapped.kept_ids = kept
        bad = measure(tiny_llama, unmapped)
        assert bad.identical is True
        assert bad.draft.drafted_outside_vocabulary > 0
        assert any("id map is broken" in note for note in bad.notes)
        assert bad.acceptance_rate is not None
        assert report.acceptance_rate is not None
        assert bad.acceptance_rate < report.acceptance_rate


class TestEagleDraft:
    def test_its_speed_is_that_of_a_call_without_clocks(
        self, pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Hooks on its modules would keep it from its short cut."""
        target, draft = pair
        timed: list[bool] = []

        class Watched(eagle_step.PlainStep):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                timed.append(bool(draft.body.lm_head._forward_hooks))
                return super().__call__(*args, **kwargs)

        monkeypatch.setattr(eagle_session, "PlainStep", Watched)
        report = measure(target, draft)
        assert timed
        assert not any(timed)
        assert report.draft.share_by_part["draft_head"] > 0

    def test_its_parts_and_step_are_those_of_the_timed_call(
        self, pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A slow clocked call only says how drafting divides, not what a step costs."""
        target, draft = pair
        before = draft.body.lm_head.forward

        def slow(*args: Any, **kwargs: Any) -> Any:
            time.sleep(0.05 if draft.body.lm_head._forward_hooks else 0.0)
            return before(*args, **kwargs)

        quick = measure(target, draft).draft
        monkeypatch.setattr(draft.body.lm_head, "forward", slow)
        report = measure(target, draft)
        entry = report.draft
        assert sum(entry.seconds_by_part.values()) == pytest.approx(entry.seconds)
        assert entry.share_by_part["draft_head"] > 2 * entry.share_by_part["draft_forward"] > 0
        assert entry.draft_step_ms is not None
        assert entry.draft_step_ms < 50
        assert quick.drafted == entry.drafted

    def test_is_measured_as_any_other(self, pair: tuple[Any, Any]) -> None:
        """With itself at full width beside it: the same weights, all rows."""
        target, draft = pair
        whole = draft.extend(DraftVocabulary.from_ids(range(300), vocab_size=300), target)
        report = measure(target, draft, compare={"full": whole})
        assert report.identical is True
        full = report.entries["full"]
        for entry in (report.draft, full):
            assert entry.identical_share == 1.0
            assert entry.drafted_outside_vocabulary == 0
            assert entry.acceptance_length is not None
            assert all(seconds > 0 for seconds in entry.seconds_by_part.values())
            assert entry.draft_step_ms is not None
            assert entry.draft_step_ms > 0
        assert report.draft.facts["draft_vocab_size"] == len(draft.kept_ids)
        assert full.facts["draft_vocab_size"] == full.facts["vocab_size"] == 300
        assert report.draft.oov_share > 0
        assert full.oov_share == 0
        accepted = sum(report.rows[0]["entries"]["draft"]["accepted"])
        drafted = sum(report.rows[0]["entries"]["draft"]["drafted"])
        assert accepted > 0.4 * drafted > 0
        # Before the first states nothing is drafted: the prefill is no verification.
        assert report.draft.target_forwards > report.draft.verified_drafts > 0
        checks = report.draft.target_forwards - len(report.rows)
        _, tokens = seconds_of(report, "draft")["forward"]
        assert tokens == 1 + report.draft.drafted / checks

    def test_an_unmapped_draft_shows_in_membership(self, pair: tuple[Any, Any]) -> None:
        target, draft = pair
        good = measure(target, draft)
        unmapped = copy.deepcopy(draft)
        unmapped.kept_ids = draft.kept_ids.roll(1)
        bad = measure(target, unmapped)
        assert bad.identical is True
        assert bad.acceptance_rate is not None
        assert good.acceptance_rate is not None
        assert bad.acceptance_rate < good.acceptance_rate

    def test_nothing_stays(self, pair: tuple[Any, Any]) -> None:
        target, draft = pair
        config = draft.generation_config
        settings, weights = config.to_dict(), {n: w.clone() for n, w in draft.named_parameters()}
        hooks = TestNothingStays().hooks(target, draft)  # some are Transformers' own
        measure(target, draft, num_assistant_tokens=2)
        assert TestNothingStays().hooks(target, draft) == hooks
        assert draft.generation_config is config
        assert config.to_dict() == settings
        assert all(torch.equal(weights[name], w) for name, w in draft.named_parameters())

    def test_another_target_is_refused_before_anything_runs(self, pair: tuple[Any, Any]) -> None:
        other = make_tiny("llama", num_hidden_layers=3)
        handle = other.register_forward_hook(lambda *_: pytest.fail("the target ran"))
        with pytest.raises(ValueError, match="layers 2, but"):
            measure(other, pair[1])
        handle.remove()


class TestTime:
    def test_parts_sum_to_the_call(self, tiny_llama: Any) -> None:
        draft = copy.deepcopy(tiny_llama)
        report = measure(tiny_llama, draft, compare={"lookup": {"prompt_lookup_num_tokens": 2}})
        for entry in report.entries.values():
            assert sum(entry.seconds_by_part.values()) == pytest.approx(entry.seconds)
            assert tuple(entry.seconds_by_part) == PARTS
            assert entry.seconds_by_part["verification"] > 0
        parts = report.draft.seconds_by_part
        assert all(seconds > 0 for seconds in parts.values())
        assert report.plain.seconds_by_part["draft_forward"] == 0
        assert report.draft.draft_step_ms is not None

    @pytest.mark.filterwarnings("always::vtrim_hf.measuring.NoGainWarning")
    def test_a_useless_draft_warns_and_says_why(self, tiny_llama: Any) -> None:
        """[transformers#36337] assisted decoding can be slower than the model alone."""
        with pytest.warns(NoGainWarning, match="no gain"):
            report = measure_decoding(
                tiny_llama,
                make_tiny("llama", seed=9),
                PROMPTS[:1],
                max_new_tokens=16,
                plain_dtypes=(),
                warmup=0,
                progress=False,
            )
        assert report.speedup < 1
        assert report.acceptance_length is not None
        assert report.acceptance_length < 1.5
        assert any("of the time, its head" in note for note in report.notes)

    def test_the_baseline_is_the_faster_dtype(self, tiny_llama: Any) -> None:
        target = tiny_llama.to(torch.bfloat16)
        report = measure(
            target, make_tiny("llama"), plain_dtypes=("bfloat16", "float32"), repeats=2
        )
        plain = [name for name in report.entries if name.startswith("plain")]
        assert plain[0] == "plain bfloat16"
        assert report.baseline == max(plain, key=lambda n: report.entries[n].tokens_per_second)
        assert len(plain) == 2 or any("not measured further" in note for note in report.notes)
        assert len(report.rows[0]["entries"]["draft"]["all_seconds"]) == 2

    def test_order_turns_from_prompt_to_prompt(
        self, tiny_llama: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from vtrim_hf.decoding_runs import DecodingRuns

        order: list[str] = []
        call = DecodingRuns.call

        def noted(self: Any, way: Any, *args: Any, **kwargs: Any) -> Any:
            order.append(way.name)
            return call(self, way, *args, **kwargs)

        monkeypatch.setattr(DecodingRuns, "call", noted)
        measure(tiny_llama, tiny_llama, PROMPTS[:2])
        assert order == ["plain float32", "draft", "draft", "plain float32"]


class TestDtypes:
    def test_a_copy_in_another_dtype_leaves_the_target_alone(self, tiny_target: Any) -> None:
        before = {name: value.clone() for name, value in tiny_target.state_dict().items()}
        ways, notes = plain_ways(tiny_target, [torch.float32, torch.bfloat16])
        assert not notes
        assert [way.name for way in ways] == ["plain float32", "plain bfloat16"]
        copied = ways[1].target
        assert {p.dtype for p in copied.parameters()} == {torch.bfloat16}
        tied = tiny_target.get_output_embeddings().weight is (
            tiny_target.get_input_embeddings().weight
        )
        assert tied == (
            copied.get_output_embeddings().weight is copied.get_input_embeddings().weight
        )
        for name, value in tiny_target.state_dict().items():
            assert value.dtype == torch.float32
            assert torch.equal(value, before[name])
        # rotary frequencies rounded to bfloat16 would be another model
        buffers = {name: buffer.dtype for name, buffer in copied.named_buffers()}
        assert torch.float32 in buffers.values()

    def test_identity_can_be_asked_for_in_float32(self, tiny_llama: Any) -> None:
        target = _cast_copy(tiny_llama, torch.bfloat16)
        report = measure(target, copy.deepcopy(tiny_llama), identity_dtype="float32")
        assert report.identical_dtype == "float32"
        assert report.identical is True

    def test_differences_are_named_with_their_gap(self, tiny_llama: Any) -> None:
        """[transformers#39421] ties flip in bfloat16, and are told from real differences."""
        said = plain_text(tiny_llama, PROMPTS[0])
        other = [*said[:4], (said[4] + 1) % 300, *said[5:]]
        found = first_difference(tiny_llama, PROMPTS[0], said, other)
        assert found["position"] == 4
        assert not found["near_tie"]
        assert found["gap"] > 0.01
        head = tiny_llama.lm_head.weight
        with torch.no_grad():
            head[other[4]] = head[said[4]]
        found = first_difference(tiny_llama, PROMPTS[0], said, other)
        assert found["gap"] == 0.0
        assert found["near_tie"]
        assert first_difference(tiny_llama, PROMPTS[0], said, said[:4])["gap"] is None

    def test_a_text_that_differs_is_reported(
        self, tiny_llama: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from vtrim_hf.decoding_runs import DecodingRuns

        call = DecodingRuns.call

        def altered(self: Any, way: Any, *args: Any, **kwargs: Any) -> Any:
            ids, tally = call(self, way, *args, **kwargs)
            return ([(ids[0] + 1) % 300, *ids[1:]] if way.name == "draft" else ids), tally

        monkeypatch.setattr(DecodingRuns, "call", altered)
        report = measure(tiny_llama, tiny_llama)
        assert report.identical is False
        assert report.identical_share == 0.0
        assert any("changes what the target says" in note for note in report.notes)


class TestNothingStays:
    def hooks(self, *models: Any) -> list[Any]:
        return [
            (len(module._forward_hooks), len(module._forward_pre_hooks))
            for model in models
            for module in model.modules()
        ]

    def test_draft_length_does_not_drift(self, tiny_llama: Any) -> None:
        """[transformers#28759] a heuristic schedule writes into the draft's settings."""
        draft = copy.deepcopy(tiny_llama)
        draft.generation_config.num_assistant_tokens = 5
        draft.generation_config.num_assistant_tokens_schedule = "heuristic"
        config, before = draft.generation_config, draft.generation_config.to_dict()
        arguments = {"num_assistant_tokens": None, "assistant_confidence_threshold": None}
        reports = [measure(tiny_llama, draft, **arguments) for _ in range(2)]
        assert draft.generation_config is config
        assert config.to_dict() == before
        first, second = (r.draft for r in reports)
        assert first.target_forwards == second.target_forwards
        assert first.facts["num_assistant_tokens"] == 5

    def test_the_draft_length_reaches_the_draft(self, tiny_llama: Any) -> None:
        """[transformers#40739] `num_assistant_tokens` given to the target has no effect."""
        report = measure(tiny_llama, copy.deepcopy(tiny_llama), num_assistant_tokens=2)
        assert len(report.draft.acceptance_by_position) == 2
        with pytest.raises(ValueError, match="argument num_assistant_tokens"):
            measure(tiny_llama, tiny_llama, generate_kwargs={"num_assistant_tokens": 2})

    def test_a_failure_in_the_middle_restores_everything(self, tiny_llama: Any) -> None:
        hooks = self.hooks(tiny_llama)
        generator = ScriptedGenerator([])
        generator.fail_at = 2

        def own(**_: Any) -> ScriptedGenerator:
            return generator

        tiny_llama._get_candidate_generator = own
        with pytest.raises(RuntimeError, match="out of memory"), metered(tiny_llama):
            tiny_llama.generate(PROMPTS[0], max_new_tokens=8, prompt_lookup_num_tokens=1)
        assert tiny_llama.__dict__["_get_candidate_generator"] is own
        assert "get_candidates" not in vars(generator)
        assert "update_candidate_strategy" not in vars(generator)
        assert self.hooks(tiny_llama) == hooks

    def test_a_failing_draft_leaves_models_as_they_were(self, tiny_llama: Any) -> None:
        draft = copy.deepcopy(tiny_llama)
        config = draft.generation_config
        tiny_llama.train()
        hooks = self.hooks(tiny_llama, draft)
        calls = 0

        def fail(*_: Any) -> None:
            nonlocal calls
            calls += 1
            if calls > 6:
                raise RuntimeError("out of memory")

        handle = draft.model.register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            measure(tiny_llama, draft)
        handle.remove()
        assert calls > 6
        assert draft.generation_config is config
        assert "_get_candidate_generator" not in vars(tiny_llama)
        assert self.hooks(tiny_llama, draft) == hooks
        assert all(module.training for module in tiny_llama.modules())

    def test_generators_keep_their_class(self, tiny_llama: Any) -> None:
        # Transformers adapts its threshold only where `type(self)` is its own generator
        seen = []
        original = tiny_llama._get_candidate_generator

        def spy(**kwargs: Any) -> Any:
            seen.append(original(**kwargs))
            return seen[-1]

        tiny_llama._get_candidate_generator = spy
        measure(tiny_llama, copy.deepcopy(tiny_llama), PROMPTS[:1])
        assert {type(generator).__name__ for generator in seen} == {"AssistedCandidateGenerator"}

    def test_wrapped_targets_are_seen_through(self, tiny_llama: Any) -> None:
        class Parallel(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.module = tiny_llama

        assert unwrapped(Parallel()) is tiny_llama
        with pytest.raises(TypeError, match="pass the model itself"):
            unwrapped("me/model")


class TestReport:
    def test_json_round_trip(self, report: DecodeReport, tmp_path: Any) -> None:
        text = report.to_json()
        assert DecodeReport.from_json(text) == report
        data = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
        assert data["summary"]["speedup"] == report.speedup
        assert set(data["entries"]) == {"plain float32", "draft", "same"}
        path = tmp_path / "report.json"
        path.write_text("old")
        report.save(path)
        assert DecodeReport.load(path) == report
        assert [file.name for file in tmp_path.iterdir()] == ["report.json"]

    @pytest.mark.parametrize("text", ["[]", "{}", '{"schema": 99}'])
    def test_other_json_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="schema 1"):
            DecodeReport.from_json(text)

    def test_table_has_a_line_per_entry(self, report: DecodeReport) -> None:
        lines = report.table().splitlines()
        assert len(lines) == 2 + 3
        assert len({line.count("|") for line in lines}) == 1
        assert lines[2].startswith("| plain float32 | 300 ")

    def test_values(self, report: DecodeReport) -> None:
        plain, draft = report.plain, report.draft
        assert plain.speedup == Spread(1, 1, 1, 1, 1, 1, 1)
        assert draft.tokens == 16 * len(PROMPTS)
        assert draft.ms_per_token == pytest.approx(1000 / draft.tokens_per_second)
        assert report.ratio("draft", "plain float32") == draft.speedup
        assert sum(draft.share_by_part.values()) == pytest.approx(1)
        assert draft.speedup.min <= draft.speedup.low <= draft.speedup.high <= draft.speedup.max
        assert {"cpu", "cores", "threads", "versions"} <= set(report.machine)
        with pytest.raises(ValueError, match="no entry 'nobody'"):
            report.ratio("draft", "nobody")

    def test_a_subset_is_a_report_of_its_own(self, report: DecodeReport) -> None:
        part = report.subset([0, 2])
        assert [row["prompt"] for row in part.rows] == [0, 2]
        assert part.draft.tokens == 32
        assert report.subset(range(3)) == report
        with pytest.raises(ValueError, match="at least one measured prompt"):
            report.subset([7])

    def test_plot(self, report: DecodeReport, tmp_path: Any) -> None:
        pytest.importorskip("matplotlib")
        report.plot(tmp_path / "report.png")
        assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
        with pytest.raises(ValueError, match="must end in"):
            report.plot(tmp_path / "report.txt")
        assert [file.name for file in tmp_path.iterdir()] == ["report.png"]

    def test_an_interrupted_measurement_goes_on(self, tiny_llama: Any) -> None:
        rows: list[dict[str, Any]] = []
        first = measure(tiny_llama, tiny_llama, on_row=rows.append)
        assert tuple(rows) == first.rows
        kept = json.loads(json.dumps(rows[:2]))
        again: list[dict[str, Any]] = []
        second = measure(tiny_llama, tiny_llama, done=kept, on_row=again.append)
        assert second.rows[:2] == first.rows[:2]
        assert [row["prompt"] for row in again] == [2]
        with pytest.raises(ValueError, match="belongs to another prompt"):
            measure(tiny_llama, tiny_llama, PROMPTS[::-1], done=kept)

    def test_spread_of_one_prompt(self) -> None:
        assert Spread.of([2.0]) == Spread(2, 2, 2, 2, 2, 2, 2)


class TestInputs:
    def test_every_kind_of_prompt(self, byte_tokenizer: Any) -> None:
        chat = [{"role": "user", "content": "hello"}]
        shapes = prepare_prompts(
            ["hello", chat, [5, 6, 7], torch.tensor([5, 6, 7]), {"input_ids": [[5, 6, 7]]}],
            byte_tokenizer,
        )
        text, conversation, *ids = (one["input_ids"] for one in shapes)
        assert torch.equal(text, conversation)
        assert byte_tokenizer.decode(text[0]).endswith("<|im_start|>assistant\n")
        assert all(one.tolist() == [[5, 6, 7]] for one in ids)
        assert all(one["attention_mask"].shape == one["input_ids"].shape for one in shapes)
        raw = prepare_prompts(["hello"], byte_tokenizer, raw=True)[0]["input_ids"]
        assert byte_tokenizer.decode(raw[0]) == "hello"

    @pytest.mark.parametrize(
        ("prompts", "error", "message"),
        [
            pytest.param([], ValueError, "at least one prompt", id="none"),
            pytest.param("hello", TypeError, "put it in a list", id="bare text"),
            pytest.param(["hello"], ValueError, "pass tokenizer=", id="no tokenizer"),
            pytest.param(
                [{"role": "user", "content": "x"}], ValueError, "list of messages", id="bare chat"
            ),
            pytest.param([torch.ones(2, 4, dtype=torch.long)], ValueError, "holds 2", id="batch"),
            pytest.param([[]], ValueError, "prompt 0 is empty", id="empty"),
            pytest.param([torch.ones(4)], TypeError, "integer ids", id="floats"),
            pytest.param([7], TypeError, "got int", id="number"),
            pytest.param([[5, 1 << 63]], ValueError, "token ids, got 9223", id="no int64"),
            pytest.param([[5] * 1010], ValueError, "1024 positions", id="too long"),
        ],
    )
    def test_bad_prompts(
        self, tiny_llama: Any, prompts: Any, error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            measure(tiny_llama, tiny_llama, prompts)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
            ({"repeats": 0}, "repeats must be at least 1"),
            ({"num_assistant_tokens": 0}, "num_assistant_tokens must be at least 1, got 0"),
            ({"num_assistant_tokens": 2.5}, "num_assistant_tokens must be a whole number"),
            ({"warmup": -1}, "warmup must be at least 0"),
            ({"plain_dtypes": ("int8",)}, "floating-point"),
            ({"identity_dtype": "int32"}, "floating-point"),
            ({"compare": {"draft": None}}, "the name 'draft'"),
            ({"compare": {"plain x": None}}, "the name 'plain x'"),
            ({"generate_kwargs": {"num_beams": 2}}, "num_beams=2"),
            ({"generate_kwargs": {"assistant_model": 1}}, "draft or compare"),
        ],
    )
    def test_bad_arguments(self, tiny_llama: Any, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            measure(tiny_llama, tiny_llama, **arguments)

    def test_a_name_is_no_draft(self, tiny_llama: Any) -> None:
        with pytest.raises(TypeError, match="load it first"):
            measure(tiny_llama, "me/draft")

    @pytest.mark.parametrize(
        ("prompt", "named"),
        [([5, 300], "prompt 1 holds the id 300"), ([-1, 5], "prompt 1 holds the id -1")],
    )
    def test_ids_that_the_target_has_not(
        self, tiny_llama: Any, prompt: list[int], named: str
    ) -> None:
        with pytest.raises(ValueError, match=rf"{named}, but .* \[0, 300\)"):
            measure(tiny_llama, tiny_llama, [[5, 6], prompt])

    @pytest.mark.parametrize("given", ["draft", "compare", "arguments"])
    @pytest.mark.parametrize("fault", ["tokenizer", "width"])
    def test_a_trimmed_draft_of_another_target_is_refused_before_anything_runs(
        self, tiny_llama: Any, byte_tokenizer: Any, fault: str, given: str
    ) -> None:
        width = 320 if fault == "width" else 300
        vocabulary = DraftVocabulary.from_ids(
            range(99), vocab_size=width, tokenizer_hash="0" * 64 if width == 300 else None
        )
        draft = TrimmedDraftForCausalLM.from_draft_model(tiny_llama, vocabulary)
        arguments: dict[str, Any] = {"compare": {"other": draft}} if given == "compare" else {}
        first = {
            "draft": draft,
            "compare": tiny_llama,
            "arguments": {"assistant_model": draft},
        }[given]
        handle = tiny_llama.register_forward_hook(lambda *_: pytest.fail("the target ran"))
        named = "was made for the tokenizer 0000" if width == 300 else "is made for 320"
        with pytest.raises(ValueError, match=named):
            measure(tiny_llama, first, tokenizer=byte_tokenizer, **arguments)
        handle.remove()
