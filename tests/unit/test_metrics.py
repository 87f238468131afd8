"""The modules of `evaluate`: that they load, without network and package, and compute.

What they compute is tested beside the modules that do it: `test_covered_tokens.py` and others.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from vtrim_hf.metrics import METRICS, metric_path

SECTIONS = (
    "## Metric Description",
    "## How to Use",
    "### Inputs",
    "### Output Values",
    "#### Values from Popular Papers",
    "### Examples",
    "## Limitations and Bias",
    "## Citation",
    "## Further References",
)

# Loads every module from copied folders, where the package cannot be found and no network is.
ALONE = """
import json, socket, sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("vtrim_hf", "torch"):
            raise ModuleNotFoundError(name)

def refused(*args, **kwargs):
    raise AssertionError("the network was asked for")

import evaluate
sys.meta_path.insert(0, Nothing())
socket.getaddrinfo = socket.socket.connect = refused
calls = '[{"name": "f", "arguments": {"x": 1}}]'
inputs = {
    "acceptance_length": {"predictions": [[1, 0]]},
    "call_match": {"predictions": [calls], "references": [calls]},
    "entity_f1": {"predictions": ['{"a": ["b"]}'], "references": ['{"a": ["b"]}']},
    "number_match": {"predictions": ["so 5"], "references": ["#### 5"]},
    "token_coverage": {"predictions": [[1, 2]], "kept_ids": [1]},
}
print(json.dumps({
    name: evaluate.load(f"{sys.argv[1]}/{name}").compute(**given)[name]
    for name, given in inputs.items()
}))
"""


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    evaluate = pytest.importorskip("evaluate")
    return {name: evaluate.load(metric_path(name)) for name in METRICS}


def test_every_folder_is_named() -> None:
    package = Path(metric_path("token_coverage")).parent
    assert {path.parent.name for path in package.glob("*/README.md")} == set(METRICS)
    with pytest.raises(ValueError, match=r"must be one of acceptance_length, .*, got 'bleu'"):
        metric_path("bleu")


@pytest.mark.parametrize("name", METRICS)
def test_a_folder_stands_alone(name: str) -> None:
    """`evaluate` copies NAME.py and what it imports from beside it, and no more."""
    folder = Path(metric_path(name))
    beside = {path.stem for path in folder.glob("*.py")} - {name, "__init__"}
    for path in folder.glob("*.py"):
        found: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level <= 1, path
                module = (node.module or "").partition(".")[0]
                found.add(f".{module}" if node.level else module)
        others = found - sys.stdlib_module_names
        if path.stem == name:
            assert others - {"transformers"} == {
                "evaluate",
                "datasets",
                *(f".{n}" for n in beside),
            }
        else:
            assert others <= {"numpy"}, path


@pytest.mark.parametrize(
    ("function", "ones"),
    [
        ("_interval", ("token_coverage.covered_tokens", "acceptance_length.verified_drafts")),
        ("_wilson", ("number_match.final_numbers", "call_match.function_calls")),
    ],
)
def test_what_is_written_twice_is_the_same(function: str, ones: tuple[str, str]) -> None:
    one, other = (
        inspect.getsource(getattr(importlib.import_module(f"vtrim_hf.metrics.{name}"), function))
        for name in ones
    )
    assert one == other


def test_a_module_knows_its_name_and_card(modules: dict[str, Any]) -> None:
    for name, module in modules.items():
        assert (module.name, module.module_type) == (name, "metric")
        assert module.description.strip()
        citation = module.citation.strip()
        assert citation.startswith("@")
        assert citation in (Path(metric_path(name)) / "README.md").read_text("utf-8")
        assert name in module.inputs_description


@pytest.mark.parametrize("name", METRICS)
def test_the_card_has_the_form_of_such_cards(name: str) -> None:
    text = (Path(metric_path(name)) / "README.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    facts = yaml.safe_load(front)
    assert facts["tags"] == ["evaluate", "metric"]
    assert facts["title"].lower().replace(" ", "_") == name
    assert facts["description"].strip()
    assert body.lstrip().startswith(f"# Metric Card for {facts['title']}\n")
    headings = [line for line in body.splitlines() if re.match("##+ ", line)]
    assert headings == list(SECTIONS)
    assert max(map(len, body.splitlines())) <= 110


@pytest.mark.parametrize("name", METRICS)
def test_the_examples_say_what_comes_out(name: str, modules: dict[str, Any]) -> None:
    """Those of the card and those of the module's own description."""
    card = (Path(metric_path(name)) / "README.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL))
    for text in (blocks, modules[name].inputs_description):
        test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
        assert len(test.examples) > 3
        said: list[str] = []
        doctest.DocTestRunner(verbose=False).run(test, out=said.append)
        assert not said, "".join(said)


def test_what_an_output_is_called_is_in_card_and_description(modules: dict[str, Any]) -> None:
    calls = '[{"name": "f", "arguments": {"x": 1}}]'
    inputs: dict[str, dict[str, Any]] = {
        "acceptance_length": {"predictions": [[1, 0]]},
        "call_match": {"predictions": [calls], "references": [calls]},
        "entity_f1": {"predictions": ["{}"], "references": ["{}"]},
        "number_match": {"predictions": ["5"], "references": ["5"]},
        "token_coverage": {"predictions": [[1]], "kept_ids": [1]},
    }
    for name, module in modules.items():
        card = (Path(metric_path(name)) / "README.md").read_text("utf-8")
        for output in module.compute(**inputs[name]):
            assert f"**{output}**" in card, f"{name}: {output}"
            assert re.search(rf"\b{output}\b", module.inputs_description), f"{name}: {output}"


def test_texts_are_encoded(byte_tokenizer: Any, tmp_path: Path) -> None:
    evaluate = pytest.importorskip("evaluate")
    coverage = evaluate.load(metric_path("token_coverage"), "texts", keep_in_memory=True)
    ids = byte_tokenizer("fox", add_special_tokens=False)["input_ids"]
    texts = ["fox fox", "fox"]
    found = coverage.compute(predictions=texts, kept_ids=ids, tokenizer=byte_tokenizer)
    encoded = [byte_tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert found["tokens"] == sum(map(len, encoded))
    missed = {token for text in encoded for token in text} - set(ids)
    assert {one["id"] for one in found["most_missed"]} == missed
    for one in found["most_missed"]:
        assert one["text"] == byte_tokenizer.decode([one["id"]])
    byte_tokenizer.save_pretrained(tmp_path)
    again = coverage.compute(predictions=texts, kept_ids=ids, tokenizer=str(tmp_path))
    assert again == found
    with pytest.raises(ValueError, match="texts need the tokenizer"):
        coverage.compute(predictions=["fox"], kept_ids=[1])
    with pytest.raises(ValueError, match='must be "default", for token ids, or "texts"'):
        evaluate.load(metric_path("token_coverage"), "words")


@pytest.mark.parametrize(
    ("name", "given", "error", "said"),
    [
        (
            "token_coverage",
            {"predictions": ["fox"], "kept_ids": [1]},
            ValueError,
            "expected a list",
        ),
        ("token_coverage", {"predictions": [[1]]}, TypeError, "says every token"),
        ("token_coverage", {"predictions": [], "kept_ids": [1]}, ValueError, "at least one token"),
        ("acceptance_length", {"predictions": [2, 3]}, ValueError, "expected format"),
        ("acceptance_length", {"predictions": [[-1]]}, ValueError, "from 0 up, got -1"),
        # `datasets` would cut these down to whole numbers.
        ("acceptance_length", {"predictions": [[1], [1.5]]}, ValueError, "got 1.5 in text 1"),
        ("acceptance_length", {"predictions": np.array([[1.5]])}, ValueError, "1.5.* in text 0"),
        ("acceptance_length", {"predictions": torch.ones(1, 2)}, ValueError, "in text 0"),
        ("acceptance_length", {"predictions": [[True]]}, ValueError, "got True in text 0"),
        (
            "token_coverage",
            {"predictions": [[5.7, 1.2]], "kept_ids": [1]},
            ValueError,
            "got 5.7 in text 0",
        ),
        ("acceptance_length", {}, ValueError, "must be given, or added before, got None"),
        ("token_coverage", {"predictions": None, "kept_ids": [1]}, ValueError, "must be given"),
        ("number_match", {"predictions": [5], "references": ["5"]}, ValueError, "expected format"),
        ("entity_f1", {"predictions": ["{}"], "references": [{}]}, ValueError, "expected format"),
        ("call_match", {"predictions": ["a", "b"], "references": ["[]"]}, ValueError, "Mismatch"),
    ],
)
def test_wrong_inputs_are_refused(
    name: str, given: dict[str, Any], error: type[Exception], said: str
) -> None:
    evaluate = pytest.importorskip("evaluate")
    module = evaluate.load(metric_path(name), keep_in_memory=True)
    with pytest.raises(error, match=said):
        module.compute(**given)


def test_batches_add_up(modules: dict[str, Any]) -> None:
    length = modules["acceptance_length"]
    for text in ([2, 0, 3], [1]):
        length.add(prediction=text)
    assert length.compute()["acceptance_length"] == 2.5
    coverage = modules["token_coverage"]
    coverage.add_batch(predictions=np.array([[1, 2]]))
    coverage.add_batch(predictions=[torch.tensor([1])])
    assert coverage.compute(kept_ids=[1])["covered_tokens"] == 2
    with pytest.raises(ValueError, match="must be given, or added before, got None"):
        coverage.compute(kept_ids=[1])


def test_an_added_text_is_checked_before_it_is_stored() -> None:
    evaluate = pytest.importorskip("evaluate")
    for name in ("acceptance_length", "token_coverage"):
        module = evaluate.load(metric_path(name), keep_in_memory=True)
        with pytest.raises(ValueError, match=r"got 1\.5 in the text"):
            module.add(prediction=[1.5])
        with pytest.raises(ValueError, match=r"got 1\.5 in text 1"):
            module.add_batch(predictions=[[1], [1.5]])


def test_folders_load_alone_and_offline(tmp_path: Path) -> None:
    """As somebody has them who took them from the Hub: no package beside, and no network."""
    ignored = shutil.ignore_patterns("__pycache__", "__init__.py")
    for name in METRICS:
        shutil.copytree(metric_path(name), tmp_path / "spaces" / name, ignore=ignored)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH",)
    }
    environment |= {"HF_HOME": str(tmp_path / "hf"), "USE_TORCH": "0"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    process = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path / "spaces")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout.splitlines()[-1]) == {
        "acceptance_length": 1.5,
        "call_match": 1.0,
        "entity_f1": 1.0,
        "number_match": 1.0,
        "token_coverage": 0.5,
    }
