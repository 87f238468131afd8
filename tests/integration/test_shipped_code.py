"""A saved draft brings its code along: it loads and drafts where the package is not installed."""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import vtrim_hf
from drafting import make_draft, make_eagle, teach
from tiny_models import make_prompt, make_tiny, perturbed

KEPT = [i for i in range(300) if i % 4]

# Whatever the environment has installed or lies beside it, `import vtrim_hf` fails.
_BLOCKER = """
import importlib.abc, sys
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "vtrim_hf":
            raise ModuleNotFoundError("blocked: " + name)
sys.meta_path.insert(0, Blocker())
try:
    import vtrim_hf
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("the package must not be importable here")
"""

_USE = """
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.generation import GenerationMixin

folder, target_folder, facts = sys.argv[1:4]
expected = load_file(facts)
draft = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
assert type(draft).__module__.startswith("transformers_modules."), type(draft).__module__
assert not any(name.partition(".")[0] == "vtrim_hf" for name in sys.modules)
assert torch.equal(draft.kept_ids, expected["kept_ids"])
inputs = {name[3:]: tensor for name, tensor in expected.items() if name.startswith("in.")}
assert torch.equal(draft(**inputs).logits, expected["logits"])
assert draft.generation_config.num_assistant_tokens == 4

# A second load of the same code must not wrap the hook again.
AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
hooked = GenerationMixin._get_candidate_generator
assert not hasattr(hooked._vtrim_original, "_vtrim_original")

target = AutoModelForCausalLM.from_pretrained(target_folder)
passes = []
target.register_forward_hook(lambda *args: passes.append(1))
settings = dict(max_new_tokens=40, do_sample=False)
plain = target.generate(expected["ids"], **settings)
without = len(passes)
passes.clear()
drafted = target.generate(expected["ids"], assistant_model=draft, **settings)
assert torch.equal(plain, drafted), (plain, drafted)
assert torch.equal(plain, expected["text"])
assert len(passes) < 0.8 * without, (len(passes), without)
print("target passes", len(passes), "of", without)

# What was loaded as shipped code can be saved and shipped again.
draft.save_pretrained(sys.argv[4])
again = AutoModelForCausalLM.from_pretrained(sys.argv[4], trust_remote_code=True)
assert torch.equal(again(**inputs).logits, expected["logits"])
"""


def run(code: str, *arguments: object, cwd: Path) -> str:
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}
    environment |= {"HF_MODULES_CACHE": str(cwd / "modules"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def save_pair(root: Path, body: str) -> Path:
    """Save a pair, and what they say in this process."""
    target = make_tiny("llama")
    ids = make_prompt(8)
    text = target.generate(ids, max_new_tokens=40, do_sample=False)
    torch.manual_seed(0)
    if body == "standalone":
        draft = make_draft(perturbed(target, 0.02), KEPT)
        inputs = {"input_ids": ids.clone()}
    else:
        draft = make_eagle(target, {*KEPT, *text[0].tolist()}, initializer_range=0.1)
        teach(draft, target, text, passes=50)
        inputs = {"inputs_embeds": torch.randn(2, 5, 48)}
        inputs["target_hidden_states"] = torch.randn(2, 5, 3 * 48)
    draft.save_pretrained(root / "draft")
    target.save_pretrained(root / "target")
    with torch.no_grad():
        facts = {
            "ids": ids,
            "logits": draft(**inputs).logits,
            "kept_ids": draft.kept_ids,
            "text": text,
            **{f"in.{name}": tensor for name, tensor in inputs.items()},
        }
    save_file(facts, root / "facts.safetensors")
    return root


@pytest.fixture(scope="module")
def shipped(tmp_path_factory) -> Path:
    """A folder with a saved pair and what they say in this process."""
    return save_pair(tmp_path_factory.mktemp("shipped"), "standalone")


@pytest.fixture(scope="module")
def shipped_eagle(tmp_path_factory) -> Path:
    """The same with an EAGLE-3 draft."""
    return save_pair(tmp_path_factory.mktemp("shipped_eagle"), "eagle3")


# On the oldest releases one body is enough: that Transformers runs the code as it does here.
BOTH_BODIES = ["shipped", pytest.param("shipped_eagle", marks=pytest.mark.newest)]


@pytest.mark.parametrize("pair", BOTH_BODIES)
def test_without_the_package_the_shipped_code_says_the_same_and_drafts(pair, request, tmp_path):
    shipped = request.getfixturevalue(pair)
    places = (shipped / "draft", shipped / "target", shipped / "facts.safetensors")
    assert "target passes" in run(_BLOCKER + _USE, *places, tmp_path / "again", cwd=tmp_path)
    names = {place.name for place in (shipped / "draft").glob("*.py")}
    assert {place.name for place in (tmp_path / "again").glob("*.py")} == names


def test_without_the_package_nothing_runs_unasked(shipped, tmp_path):
    code = _BLOCKER + (
        "from transformers import AutoModelForCausalLM\n"
        "try: AutoModelForCausalLM.from_pretrained(sys.argv[1])\n"
        "except ValueError as error: print('refused', 'trust_remote_code' in str(error))\n"
    )
    assert "refused True" in run(code, shipped / "draft", cwd=tmp_path)


_WITH_PACKAGE = """
import builtins, sys
def ask(*args): raise SystemExit("asked about remote code")
builtins.input = ask
sys.path.insert(0, sys.argv[2])
import vtrim_hf
from transformers import AutoConfig, AutoModelForCausalLM
assert type(AutoConfig.from_pretrained(sys.argv[1])) is vtrim_hf.TrimmedDraftConfig
draft = AutoModelForCausalLM.from_pretrained(sys.argv[1])
assert type(draft) is vtrim_hf.TrimmedDraftForCausalLM
assert not any(name.startswith("transformers_modules") for name in sys.modules)
"""


def test_with_the_package_its_own_classes_load_without_a_question(shipped, tmp_path):
    run(_WITH_PACKAGE, shipped / "draft", Path(vtrim_hf.__file__).parents[1], cwd=tmp_path)


_BOTH = """
import sys
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
import torch
facts = load_file(sys.argv[3])
remote = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
assert type(remote).__module__.startswith("transformers_modules.")
sys.path.insert(0, sys.argv[4])
import vtrim_hf
ours = vtrim_hf.TrimmedDraftForCausalLM.from_pretrained(sys.argv[1])
assert type(ours) is not type(remote)
target = AutoModelForCausalLM.from_pretrained(sys.argv[2])
passes = []
target.register_forward_hook(lambda *args: passes.append(1))
counts = []
for draft in (remote, ours):
    passes.clear()
    said = target.generate(
        facts["ids"], assistant_model=draft, max_new_tokens=40, do_sample=False
    )
    assert torch.equal(said, facts["text"])
    counts.append(len(passes))
assert counts[0] == counts[1] < 32, counts
vtrim_hf.check_pair(target, remote)
"""


@pytest.mark.parametrize("pair", BOTH_BODIES)
def test_shipped_and_installed_drafts_work_side_by_side(pair, request, tmp_path):
    shipped = request.getfixturevalue(pair)
    places = (shipped / "draft", shipped / "target", shipped / "facts.safetensors")
    run(_BOTH, *places, Path(vtrim_hf.__file__).parents[1], cwd=tmp_path)


def imported_modules(place: Path) -> set[tuple[int, str]]:
    found = set()
    for node in ast.walk(ast.parse(place.read_text())):
        if isinstance(node, ast.ImportFrom):
            found.add((node.level, node.module or ""))
        elif isinstance(node, ast.Import):
            found |= {(0, name.name) for name in node.names}
    return found


def test_shipped_files_import_each_other_and_what_everyone_has(shipped):
    places = {place.stem: place for place in (shipped / "draft").glob("*.py")}
    assert {"modeling_trimmed_draft", "configuration_trimmed_draft", "vocabulary"} <= set(places)
    needed = {"modeling_trimmed_draft"}
    for name, place in places.items():
        for level, module in imported_modules(place):
            if level:
                assert level == 1, f"{name} imports from above its folder"
                assert module in places, f"{name} needs {module}, which is not shipped"
                needed.add(module)
            else:
                root = module.partition(".")[0]
                everyone = {"torch", "numpy", "safetensors", "transformers", "huggingface_hub"}
                assert root in sys.stdlib_module_names | everyone, f"{name} needs {root}"
        source = Path(vtrim_hf.__file__).parent / place.name
        assert place.read_bytes() == source.read_bytes()
    assert set(places) == needed, "nothing is shipped that is not used"


def test_the_config_names_the_shipped_classes(shipped):
    facts = json.loads((shipped / "draft" / "config.json").read_text())
    assert facts["auto_map"] == {
        "AutoConfig": "configuration_trimmed_draft.TrimmedDraftConfig",
        "AutoModelForCausalLM": "modeling_trimmed_draft.TrimmedDraftForCausalLM",
    }
    assert facts["architectures"] == ["TrimmedDraftForCausalLM"]


# Releases: code and drafts of several of them meet.

EARLIER = "43ab6c07b46fc91fa381592470b74098e6b4fc24"
"""A commit that stands for an earlier release, until there is one."""

HERE = Path(vtrim_hf.__file__).parents[1]


def git(*arguments: str) -> bytes | None:
    """Return what git says of the checkout, None where there is none."""
    if not (HERE / ".git").exists() or shutil.which("git") is None:
        return None
    done = subprocess.run(["git", "-C", HERE, *arguments], check=False, capture_output=True)
    return done.stdout if done.returncode == 0 else None


@pytest.fixture(scope="module")
def earlier(tmp_path_factory) -> Path:
    """The package as it was."""
    packed = git("archive", EARLIER, "vtrim_hf", "hub_cards")
    if packed is None:
        pytest.skip("a checkout without its history")
    place = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(place, filter="data")
    return place


def save_draft(package: Any, target: Any, place: Path, body: str) -> None:
    """Save a draft by a release of the package, and what it says; runs in other processes, too."""
    kept = package.DraftVocabulary.from_ids([i for i in range(300) if i % 4], vocab_size=300)
    if body == "eagle3":
        draft = package.TrimmedDraftForCausalLM.for_target(target, kept)
        inputs = {"inputs_embeds": torch.randn(1, 5, 48)}
        inputs["target_hidden_states"] = torch.randn(1, 5, 3 * 48)
    else:
        draft = package.TrimmedDraftForCausalLM.from_draft_model(target, kept)
        inputs = {"input_ids": torch.arange(3, 11)[None]}
    draft.save_pretrained(place)
    with torch.no_grad():
        logits = draft(**inputs).logits
    save_file({**inputs, "logits": logits}, place / "facts.safetensors")


def load_draft(place: Path, **how: Any) -> str:
    """Load a draft, compare what it says, and say how it went; runs in other processes, too."""
    try:
        draft = AutoModelForCausalLM.from_pretrained(place, **how)
    except ValueError as error:
        return f"{place.name} refused: {error}"
    facts = load_file(place / "facts.safetensors")
    logits = facts.pop("logits")
    with torch.no_grad():
        assert torch.allclose(draft(**facts).logits, logits, rtol=1e-5, atol=1e-6)
    draft.save_pretrained(place.with_name(f"{place.name}_again"))
    return f"{place.name} loaded by {type(draft).__module__.partition('.')[0]}"


_PROGRAM = f"""
import builtins, sys
from pathlib import Path
from typing import Any
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
def ask(*args): raise SystemExit("asked about remote code")
builtins.input = ask
{inspect.getsource(save_draft)}
{inspect.getsource(load_draft)}
"""

_EARLIER = (
    _PROGRAM
    + """
sys.path.insert(0, sys.argv[1])
import vtrim_hf
assert vtrim_hf.__file__.startswith(sys.argv[1])
target = AutoModelForCausalLM.from_pretrained(sys.argv[2])
save_draft(vtrim_hf, target, Path(sys.argv[3]), sys.argv[4])
for place in sys.argv[5:]:
    print(load_draft(Path(place)))
"""
)

_WITHOUT = (
    _BLOCKER
    + _PROGRAM
    + """
for place in sys.argv[1:]:
    print(load_draft(Path(place), trust_remote_code=True))
"""
)


def with_code_of(folder: Path, other: Path, place: Path) -> Path:
    """Return a draft with the code of another one."""
    shutil.copytree(folder, place, ignore=shutil.ignore_patterns("*.py"))
    for file in other.glob("*.py"):
        shutil.copy(file, place)
    return place


def with_fields(folder: Path, place: Path, **fields: Any) -> Path:
    """Return a draft whose config says something more."""
    shutil.copytree(folder, place)
    config = place / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **fields}))
    return place


@pytest.mark.newest
@pytest.mark.parametrize("body", ["standalone", "eagle3"])
def test_drafts_and_code_of_an_earlier_release(body, earlier, tmp_path):
    """Each side reads what the other wrote, and refuses what it cannot understand."""
    target = make_tiny("llama")
    target.save_pretrained(tmp_path / "target")
    old, new = tmp_path / "old", tmp_path / "new"
    save_draft(vtrim_hf, target, new, body)
    later = with_fields(new, tmp_path / "later", format_version=2)
    said = run(_EARLIER, earlier, tmp_path / "target", old, body, new, later, cwd=tmp_path)
    assert "new loaded by vtrim_hf" in said
    refusal = "later refused: this draft has the layout version 2, this release reads up to 1"
    assert refusal in said
    assert "pip install -U vtrim_hf" in said
    assert load_draft(old) == "old loaded by vtrim_hf"
    mixed = with_code_of(new, old, tmp_path / "mixed")
    reverse = with_code_of(old, new, tmp_path / "reverse")
    shutil.rmtree(later)
    later = with_code_of(with_fields(new, tmp_path / "x", format_version=2), old, later)
    said = run(_WITHOUT, old, mixed, reverse, later, cwd=tmp_path)
    for name in ("old", "mixed", "reverse"):
        assert f"{name} loaded by transformers_modules" in said
    assert refusal in said


@pytest.mark.newest
def test_what_a_later_release_may_write(tmp_path):
    """Refused with the way out if it changes the meaning, kept if it does not."""
    draft = tmp_path / "draft"
    save_draft(vtrim_hf, make_tiny("llama"), draft, "standalone")
    places: dict[str, dict[str, Any]] = {
        "layout": {"format_version": 2},
        "field": {"row_scale": [1.0], "required_fields": ["row_scale"]},
        "note": {"note_of_later": {"a": 1}, "required_fields": ["head_bias"]},
    }
    folders = [with_fields(draft, tmp_path / name, **said) for name, said in places.items()]
    here = "\n".join(map(load_draft, folders))
    held = [json.loads((tmp_path / "note_again" / "config.json").read_text())]
    shutil.rmtree(tmp_path / "note_again")
    there = run(_WITHOUT, *folders, cwd=tmp_path)
    held.append(json.loads((tmp_path / "note_again" / "config.json").read_text()))
    for said in (here, there):
        assert "layout refused: this draft has the layout version 2" in said
        assert "field refused: this draft needs 'row_scale' of its config" in said
        assert "note loaded by " in said
    assert here.count("upgrade with `pip install -U vtrim_hf`") == 2
    assert there.count("load without code_revision=, or install the package") == 2
    for config in held:
        assert config["note_of_later"] == {"a": 1}
        assert config["required_fields"] == ["head_bias"]
