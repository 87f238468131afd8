"""What a step costs: the paper's figures, sizes from any config, bytes, and times."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

from vtrim_hf import latency_timing
from vtrim_hf.latency import LatencyModel
from vtrim_hf.latency_timing import (
    measure_bandwidth,
    never_falling,
    preferred_multiple,
    time_draft_step,
)
from vtrim_hf.layer_sizes import LayerSizes

LLAMA_8B = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
)


class TestThePapersFigures:
    """Llama-3.1-8B's EAGLE-3 draft, arXiv 2603.05210, table 1."""

    @pytest.mark.parametrize(
        ("part", "megaflops"),
        [("fc", 100.66), ("attention", 134.22), ("mlp", 352.32), ("head", 1050.67)],
    )
    def test_parts(self, part: str, megaflops: float) -> None:
        parts = LatencyModel.eagle3(LLAMA_8B).parts(128256)
        assert parts[part] / 1e6 == pytest.approx(megaflops, abs=0.005)

    def test_total_and_share(self) -> None:
        latency = LatencyModel.eagle3(LLAMA_8B)
        assert latency.unit == "FLOP"
        assert latency.cost(128256) / 1e6 == pytest.approx(1637.88, abs=0.005)
        share = latency.parts(128256)["head"] / latency.cost(128256)
        assert 100 * share == pytest.approx(64.15, abs=0.005)

    @pytest.mark.parametrize(
        ("k", "reduction"),
        [(32000, 0.481), (13264, 0.575), (6521, 0.609), (4380, 0.620), (128256, 0.0)],
    )
    def test_reduction(self, k: int, reduction: float) -> None:
        latency = LatencyModel.eagle3(LLAMA_8B)
        assert latency.reduction(k) == pytest.approx(reduction, abs=0.0005)

    def test_parts_sum_to_the_cost(self) -> None:
        latency = LatencyModel.eagle3(LLAMA_8B)
        for k in (1, 777, 128256):
            assert sum(latency.parts(k).values()) == pytest.approx(latency.cost(k), rel=1e-12)


class TestSizesFromConfigs:
    def test_explicit_head_dim(self) -> None:
        config = LlamaConfig(**{**LLAMA_8B.to_dict(), "head_dim": 256})
        parts = LatencyModel.eagle3(config).parts(1)
        assert parts["attention"] == 2 * (8192 * (32 * 256 + 2 * 8 * 256) + 32 * 256 * 4096)

    def test_qwen3_has_more_head_than_hidden(self) -> None:
        config = transformers.Qwen3Config(
            hidden_size=1024, num_attention_heads=16, num_key_value_heads=8, head_dim=128
        )
        sizes = LayerSizes.from_config(config)
        assert sizes.attention_weights(1024) == 1024 * (2048 + 2 * 1024) + 2048 * 1024

    @pytest.mark.parametrize(
        ("config", "width", "matrices"),
        [
            (transformers.GPT2Config(n_embd=64, n_head=4), 256, 2),
            (transformers.GPT2Config(n_embd=64, n_head=4, n_inner=100), 100, 2),
            (transformers.OPTConfig(hidden_size=64, num_attention_heads=4, ffn_dim=96), 96, 2),
            (transformers.GPTNeoXConfig(hidden_size=64, intermediate_size=128), 128, 2),
            (transformers.PhiConfig(hidden_size=64, intermediate_size=128), 128, 2),
            (transformers.BloomConfig(hidden_size=64), 256, 2),
            (transformers.LlamaConfig(hidden_size=64, intermediate_size=128), 128, 3),
            (transformers.Gemma2Config(hidden_size=64, intermediate_size=128), 128, 3),
        ],
        ids=lambda value: getattr(value, "model_type", str(value)),
    )
    def test_mlp(self, config: Any, width: int, matrices: int) -> None:
        assert LayerSizes.from_config(config).mlp_weights() == matrices * 64 * width
        assert LatencyModel.eagle3(config).parts(1)["mlp"] == 2 * matrices * 64 * width
        other = LatencyModel.eagle3(config, gated_mlp=matrices == 2)
        assert other.parts(1)["mlp"] == 2 * (5 - matrices) * 64 * width

    @pytest.mark.parametrize(
        ("config", "heads"),
        [
            (transformers.FalconConfig(hidden_size=64, num_attention_heads=4), 1),
            (
                transformers.FalconConfig(
                    hidden_size=64, num_attention_heads=4, multi_query=False
                ),
                4,
            ),
            (
                transformers.FalconConfig(
                    hidden_size=64,
                    num_attention_heads=4,
                    num_kv_heads=2,
                    new_decoder_architecture=True,
                ),
                2,
            ),
            (transformers.GPTBigCodeConfig(n_embd=64, n_head=4, bos_token_id=0), 1),
            (transformers.GPT2Config(n_embd=64, n_head=4), 4),
            (transformers.MistralConfig(hidden_size=64, num_key_value_heads=8), 8),
        ],
        ids=["falcon-mq", "falcon-mh", "falcon-new", "bigcode", "gpt2", "mistral"],
    )
    def test_shared_key_heads(self, config: Any, heads: int) -> None:
        assert LayerSizes.from_config(config).num_key_value_heads == heads

    def test_composite_config(self) -> None:
        config = transformers.Gemma3Config()
        text = config.get_text_config()
        assert LatencyModel.eagle3(config) == LatencyModel.eagle3(text)
        assert LatencyModel.eagle3(config).vocab_size == text.vocab_size

    def test_mixture_of_experts(self) -> None:
        config = transformers.MixtralConfig(hidden_size=64, intermediate_size=96)
        assert LayerSizes.from_config(config).intermediate_size == 2 * 96
        # EAGLE-3's own layer is no mixture, whatever its target is.
        assert LatencyModel.eagle3(config).parts(1)["mlp"] == 6 * 64 * 96

    def test_mlps_of_different_widths(self) -> None:
        config = LlamaConfig(hidden_size=64)
        config.__dict__["intermediate_size"] = [64, 128]
        with pytest.raises(ValueError, match="different widths, 64 to 128: give intermediate"):
            LatencyModel.standalone(config)
        assert LatencyModel.standalone(config, intermediate_size=96).parts(1)["mlp"] > 0

    def test_no_causal_lm(self) -> None:
        with pytest.raises(ValueError, match="must say its hidden_size, got None"):
            LatencyModel.eagle3(transformers.PreTrainedConfig())

    @pytest.mark.parametrize("kind", ["llama", "qwen-padded", "gemma-softcap", "mistral-sliding"])
    def test_standalone_counts_the_real_weights(self, kind: str) -> None:
        from tiny_models import make_tiny

        model = make_tiny(kind)
        layers = model.get_submodule("model.layers")
        weights = sum(p.numel() for p in layers.parameters() if p.ndim == 2)  # no norms
        latency = LatencyModel.standalone(model.config)
        parts = latency.parts(latency.vocab_size)
        assert parts["attention"] + parts["mlp"] == 2 * weights
        assert parts["head"] == 2 * model.get_output_embeddings().weight.numel()

    def test_standalone_with_fewer_layers(self) -> None:
        whole = LatencyModel.standalone(LLAMA_8B).parts(1)
        half = LatencyModel.standalone(LLAMA_8B, num_hidden_layers=16).parts(1)
        assert half["mlp"] == whole["mlp"] / 2
        assert half["head"] == whole["head"]
        with pytest.raises(ValueError, match=r"in \[1, 32\], got 33"):
            LatencyModel.standalone(LLAMA_8B, num_hidden_layers=33)

    def test_vocab_size_of_the_target(self) -> None:
        latency = LatencyModel.standalone(LLAMA_8B, vocab_size=128320)
        assert latency.vocab_size == 128320
        assert latency.reduction(128320) == 0


class TestOutsideTheVocabulary:
    @pytest.mark.parametrize("k", [0, -1, 128257])
    def test_is_an_error(self, k: int) -> None:
        latency = LatencyModel.eagle3(LLAMA_8B)
        for method in (latency.cost, latency.reduction, latency.parts):
            with pytest.raises(ValueError, match=f"between 1 and 128256 tokens, got k={k}"):
                method(k)

    def test_in_an_array(self) -> None:
        with pytest.raises(ValueError, match="got k=0"):
            LatencyModel.eagle3(LLAMA_8B).costs(np.arange(5))


class TestBytes:
    def test_seconds_to_read_the_weights(self) -> None:
        latency = LatencyModel.eagle3(LLAMA_8B, kind="bytes", dtype=torch.bfloat16, bandwidth=1e12)
        assert latency.unit == "s"
        assert latency.parts(1)["fc"] == pytest.approx(2 * 3 * 4096**2 / 1e12)
        assert latency.parts(32000)["head"] == pytest.approx(2 * (4096 + 2) * 32000 / 1e12)

    @pytest.mark.parametrize(
        ("dtype", "size"), [("float32", 4), ("torch.float16", 2), (torch.float8_e4m3fn, 1)]
    )
    def test_dtype(self, dtype: Any, size: int) -> None:
        latency = LatencyModel.standalone(LLAMA_8B, kind="bytes", dtype=dtype, bandwidth=1e9)
        one = LatencyModel.standalone(LLAMA_8B, kind="bytes", dtype="int8", bandwidth=1e9)
        assert latency.cost(500) == pytest.approx(size * one.cost(500))

    def test_a_batch_shares_the_weights_but_not_the_logits(self) -> None:
        def parts(batch: int) -> dict[str, float]:
            latency = LatencyModel.eagle3(LLAMA_8B, kind="bytes", batch_size=batch, bandwidth=1e12)
            return latency.parts(128256)

        assert parts(64)["mlp"] == parts(1)["mlp"]
        assert parts(64)["head"] > parts(1)["head"]

    def test_dtype_of_the_config(self) -> None:
        config = LlamaConfig(**{**LLAMA_8B.to_dict(), "dtype": "bfloat16"})
        latency = LatencyModel.eagle3(config, kind="bytes", bandwidth=1e9)
        assert latency.settings["dtype"] == "bfloat16"

    def test_measured_bandwidth(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vtrim_hf.weight_costs.measure_bandwidth", lambda *_: 2e9)
        latency = LatencyModel.eagle3(LLAMA_8B, kind="bytes", dtype="float32")
        assert latency.settings["bandwidth"] == 2e9
        assert latency.settings["bandwidth_measured"] is True
        assert latency.parts(1)["fc"] == pytest.approx(4 * 3 * 4096**2 / 2e9)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
    def test_bandwidth_is_that_of_a_memory(self, dtype: torch.dtype) -> None:
        speed = measure_bandwidth(dtype=dtype, megabytes=8, rounds=3)
        assert 1e6 < speed < 1e14

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
            ({"bandwidth": 0.0}, "above 0, got 0.0"),
            ({"dtype": "float31"}, "got 'float31'"),
            ({"kind": "joules"}, "'flops' or 'bytes', got 'joules'"),
        ],
    )
    def test_errors(self, options: dict[str, Any], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            LatencyModel.eagle3(LLAMA_8B, **{"kind": "bytes", "bandwidth": 1e9, **options})

    def test_bandwidth_errors(self) -> None:
        with pytest.raises(ValueError, match="at least 1, got 0, 7"):
            measure_bandwidth(megabytes=0)


class TestMeasured:
    def test_every_tiny_model(self, tiny_target: Any) -> None:
        latency = LatencyModel.measured(tiny_target, rounds=2)
        width = tiny_target.get_output_embeddings().weight.shape[0]
        assert latency.vocab_size == width
        assert latency.unit == "s"
        assert latency.head_sizes[-1] == width
        assert 10 <= len(latency.head_sizes) <= 12
        assert latency.cost(1) > 0
        costs = latency.costs(np.arange(1, width + 1))
        assert np.all(np.diff(costs) >= 0)
        assert latency.reduction(width) == 0
        assert latency.spread >= 0
        assert latency.multiple_of == 1
        assert latency.settings["dtype"] == "float32"

    def test_leaves_the_model_as_it_was(self, tiny_llama: Any) -> None:
        tiny_llama.train()
        before = {name: p.clone() for name, p in tiny_llama.named_parameters()}
        time_draft_step(tiny_llama, sizes=[1, 300], rounds=1)
        assert tiny_llama.training
        assert all(torch.equal(before[name], p) for name, p in tiny_llama.named_parameters())

    def test_a_clock_that_is_known(self, tiny_llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a clock that says k microseconds for a head of k rows, R is what it must be."""

        def seconds(call: Any, device: torch.device) -> float:
            call()
            size = call.__closure__ and {
                cell.cell_contents
                for cell in call.__closure__
                if isinstance(cell.cell_contents, int)
            }
            return max(size) * 1e-6 if size else 100e-6

        monkeypatch.setattr(latency_timing, "seconds_of_call", seconds)
        latency = LatencyModel.measured(tiny_llama, sizes=[50, 100, 300], rounds=1)
        assert latency.cost(100) == pytest.approx(200e-6)
        assert latency.cost(200) == pytest.approx(300e-6)  # between the sizes: linear
        assert latency.cost(10) == pytest.approx(150e-6)  # below the smallest: no promise of less
        assert latency.reduction(100) == pytest.approx(0.5)
        assert latency.spread == 0

    def test_biased_head(self, tiny_llama: Any) -> None:
        old = tiny_llama.lm_head
        tiny_llama.lm_head = torch.nn.Linear(old.in_features, old.out_features, bias=True)
        assert time_draft_step(tiny_llama, sizes=[7, 300], rounds=1).sizes == (7, 300)

    def test_quantised_head(self, tiny_llama: Any) -> None:
        tiny_llama.lm_head.weight = torch.nn.Parameter(
            torch.zeros(300, 48, dtype=torch.int8), requires_grad=False
        )
        with pytest.raises(ValueError, match="only a floating-point linear head can be timed"):
            LatencyModel.measured(tiny_llama)

    def test_no_body(self, tiny_llama: Any) -> None:
        tiny_llama.base_model_prefix = "elsewhere"
        with pytest.raises(ValueError, match="no body apart from its head"):
            LatencyModel.measured(tiny_llama, rounds=1)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"sizes": [0, 5]}, r"in \[1, 300\], got \[0, 5\]"),
            ({"sizes": [301]}, r"in \[1, 300\], got \[301\]"),
            ({"sizes": []}, r"in \[1, 300\], got \[\]"),
            ({"rounds": 0}, "must be at least 1, got 1, 64, 0"),
        ],
    )
    def test_errors(self, tiny_llama: Any, options: dict[str, Any], text: str) -> None:
        with pytest.raises(ValueError, match=text):
            LatencyModel.measured(tiny_llama, **options)


class TestNeverFalling:
    @pytest.mark.parametrize(
        ("given", "wanted"),
        [
            ([1, 2, 3], [1, 2, 3]),
            ([3, 1], [2, 2]),
            ([1, 4, 2, 3, 5], [1, 3, 3, 3, 5]),
            ([5], [5]),
            ([], []),
        ],
    )
    def test_known(self, given: list[float], wanted: list[float]) -> None:
        assert never_falling(given) == wanted

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.floats(0, 1e3), min_size=1, max_size=30))
    def test_rises_and_keeps_the_sum(self, values: list[float]) -> None:
        smooth = never_falling(values)
        assert len(smooth) == len(values)
        assert np.all(np.diff(smooth) >= -1e-9)
        assert sum(smooth) == pytest.approx(sum(values), abs=1e-6)


class TestValue:
    def test_json_round_trip(self) -> None:
        latency = LatencyModel(
            10, "measured", "s", {"rest": 1.0}, (1, 5, 10), (0.5, 0.5, 2.0), 0.1, 64, {"x": [1]}
        )
        again = LatencyModel.from_dict(json.loads(json.dumps(latency.to_dict())))
        assert again == latency
        assert again.multiple_of == 64

    @pytest.mark.parametrize("make", [LatencyModel.eagle3, LatencyModel.standalone])
    def test_json_of_computed_ones(self, make: Any) -> None:
        for options in ({}, {"kind": "bytes", "bandwidth": 1e9}):
            latency = make(LLAMA_8B, **options)
            text = json.dumps(latency.to_dict(), allow_nan=False)
            assert LatencyModel.from_dict(json.loads(text)) == latency

    @pytest.mark.parametrize(
        "data", [{}, {"head_sizes": [1], "head_costs": [1.0]}, {"head_sizes": 3, "head_costs": []}]
    )
    def test_json_of_something_else(self, data: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="this is no latency model"):
            LatencyModel.from_dict(data)

    @pytest.mark.parametrize(
        ("body", "sizes", "costs", "text"),
        [
            ({"rest": 1.0}, (1, 2), (1.0,), "a cost for each head size"),
            ({"rest": 1.0}, (), (), "a cost for each head size"),
            ({"rest": -1.0}, (1,), (1.0,), "must be finite, not negative"),
            ({"rest": float("nan")}, (1,), (1.0,), "must be finite"),
            ({"rest": 0.0}, (1,), (0.0,), "not all 0"),
            ({"rest": 1.0}, (1, 2), (2.0, 1.0), "must not fall"),
            ({"rest": 1.0}, (2, 1), (1.0, 2.0), "must ascend"),
        ],
    )
    def test_impossible_ones(
        self,
        body: dict[str, float],
        sizes: tuple[int, ...],
        costs: tuple[float, ...],
        text: str,
    ) -> None:
        with pytest.raises(ValueError, match=text):
            LatencyModel(10, "measured", "s", body, sizes, costs)

    @pytest.mark.parametrize(("device", "multiple"), [("cpu", 1), ("cuda", 64), ("cuda:1", 64)])
    def test_multiple(self, device: str, multiple: int) -> None:
        assert preferred_multiple(device) == multiple
