"""The module table: who may import whom, how long a module may grow, what `import vtrim_hf` costs.

Data flows one way, so imports do too. A new module gets a line in `JOBS`; modules that are planned
stand in it already and may be absent.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.newest  # the sources are read, no dependency is called

PACKAGE = Path(__file__).resolve().parents[1] / "vtrim_hf"
LONGEST_MODULE = 330

SHIPPED = (
    "kept_ids",
    "vocabulary_files",
    "vocabulary",
    "configuration_trimmed_draft",
    "compatibility",
    "processor_state",
    "draft_space",
    "confidence",
    "draft_length",
    "assisted_generation",
    "losses",
    "trimmed_head",
    "layer_sizes",
    "standalone_body",
    "packed_rows",
    "eagle_body",
    "eagle_step",
    "eagle_session",
    "eagle_target",
    "draft_making",
    "draft_on_hub",
    "modeling_trimmed_draft",
)
"""What goes into a published repository, for people without the package; bottom to top."""

JOBS: dict[str, tuple[str, ...]] = {
    "public": ("__init__",),
    "vocabulary": SHIPPED[:3],
    "draft": SHIPPED[3:],
    "rendering": (
        "chat_messages",
        "chat_rows",
        "template_runner",
        "chat_template",
        "span_tokens",
        "assistant_spans",
        "chat_rendering",
    ),
    "counting": (
        "chat_data",
        "counted_blocks",
        "batch_counting",
        "counting",
        "counts_file",
        "merging",
        "mixed_counts",
        "dataset_counts",
        "token_counts",
        "prompt_reading",
        "answers_file",
        "model_hash",
        "target_answers",
    ),
    "required": ("template_probe", "required_tokens"),
    "latency": (
        "latency_timing",
        "forward_timing",
        "weight_costs",
        "latency",
        "drafting_rates",
        "decoding_checks",
        "decoding_model",
    ),
    "search": (
        "search_curve",
        "search_space",
        "result_checks",
        "search_result",
        "search_plots",
        "tpe_search",
        "search_throughput",
        "search_judging",
        "search",
    ),
    "embedded": ("embedded_models", "named_models"),
    "measuring": (
        "decode_entry",
        "decode_report",
        "decode_text",
        "decoding_meter",
        "decoding_plots",
        "decoding_prompts",
        "decoding_runs",
        "decoding_ways",
        "kept_rows",
        "measuring",
        "calibrating",
    ),
    "locking": ("run_lock",),
    "training": (
        "eagle_unroll",
        "training_split",
        "training_data",
        "training_features",
        "training_batches",
        "training_loss",
        "training_arguments",
        "training_report",
        "training_checkpoints",
        "training_pace",
        "training_progress",
        "feature_shards",
        "feature_cache",
        "training_forward",
        "training_answers",
        "training_inputs",
        "training",
    ),
    "metrics": ("metrics",),
    "publishing": (
        "coverage_schema",
        "plain_facts",
        "search_facts",
        "decoding_facts",
        "training_facts",
        "coverage_metadata",
        "card_words",
        "model_card",
        "hub_license",
        "hub_errors",
        "hub_arguments",
        "hub_account",
        "hub_card",
        "hub_evaluation",
        "hub_folder",
        "hub_reloading",
        "hub_scratch",
        "hub_presence",
        "hub_upload",
        "hub_source",
        "hub",
        "published_draft",
        "published_files",
        "family_index",
        "family_names",
        "family_record",
        "family_folder",
        "family_upload",
        "hub_family",
        "catalogue",
    ),
    "leaving": ("eagle_format", "exporting", "doctor"),
    "reporting": (
        "report_blocks",
        "report_files",
        "report_drawing",
        "report_plots",
        "report_sections",
        "report_speed",
        "report_run",
        "report_evidence",
        "report_page",
    ),
    "local_hub": ("local_hub",),
    "steps": (
        "measuring_step",
        "training_vocabulary",
        "training_calibration",
        "training_workplace",
        "training_ending",
        "training_step",
        "recommending",
        "decoding_step",
        "steps",
    ),
    "recipe": (
        "recipe_yaml",
        "recipe_fields",
        "recipe",
        "recipe_settings",
        "recipe_models",
        "recipe_sections",
        "recipe_rows",
        "recipe_plan",
        "run_folder",
        "recipe_measuring",
        "recipe_training",
        "recipe_publishing",
        "recipe_work",
        "recipe_trainable",
        "recipe_preflight",
        "recipe_report",
        "recipe_runner",
    ),
    "command": (
        "cli_shared",
        "cli_catalogue",
        "cli_counting",
        "cli_drafting",
        "cli_exporting",
        "cli_hub",
        "cli_publishing",
        "cli_reporting",
        "cli_running",
        "cli_searching",
        "cli_training",
        "cli",
    ),
}
"""Each job and its modules, which import each other freely, but in no circle."""

EVERYTHING = frozenset(JOBS) - {"steps", "recipe", "command"}

MAY_IMPORT: dict[str, frozenset[str]] = {
    "public": EVERYTHING - {"public"},
    "vocabulary": frozenset(),
    "draft": frozenset({"vocabulary"}),
    "rendering": frozenset(),
    "counting": frozenset({"embedded", "rendering", "vocabulary"}),
    "required": frozenset(),
    "latency": frozenset({"draft"}),
    "search": frozenset({"counting", "latency", "required", "vocabulary"}),
    "embedded": frozenset(),
    "measuring": frozenset({"draft", "vocabulary"}),
    "locking": frozenset(),
    "training": frozenset(
        {
            "counting",
            "draft",
            "embedded",
            "locking",
            "measuring",
            "publishing",
            "rendering",
            "vocabulary",
        }
    ),
    "metrics": frozenset(),
    "publishing": frozenset({"draft", "measuring", "search", "vocabulary"}),
    "leaving": frozenset({"draft", "publishing", "vocabulary"}),
    "reporting": frozenset({"measuring", "publishing", "search", "vocabulary"}),
    "local_hub": frozenset(),
    "steps": EVERYTHING - {"public"},
    "recipe": EVERYTHING | {"steps"},
    "command": EVERYTHING | {"steps", "recipe"},
}

JOB_OF = {module: job for job, modules in JOBS.items() for module in modules}


@dataclass(frozen=True)
class Import:
    """One import of a module of this package: where it stands and how it is written."""

    importer: str
    imported: str
    line: int
    flat: bool  # `from .name import x`
    at_import: bool  # neither inside a function nor for type checkers only

    def __str__(self) -> str:
        return f"vtrim_hf/{self.importer}.py:{self.line} imports {self.imported}"


def package_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    """The flat name of a module: a subpackage counts as one."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def module_or_root(name: str) -> str:
    """What `from vtrim_hf import name` imports: a module, or one of the public names."""
    is_module = (PACKAGE / f"{name}.py").exists() or (PACKAGE / name).is_dir()
    return name if is_module else "__init__"


def imports_of(path: Path) -> list[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    later = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for inner in ast.walk(node)
    }
    found = []
    depth = len(path.relative_to(PACKAGE).parts) - 1
    for node in ast.walk(tree):
        names: list[tuple[str, bool]] = []
        if isinstance(node, ast.Import):
            absolute = [alias.name.split(".") for alias in node.names]
            names = [((*n, "__init__")[1], False) for n in absolute if n[0] == "vtrim_hf"]
        elif isinstance(node, ast.ImportFrom) and node.level:
            if node.level <= depth:
                continue  # stays inside its subpackage, which counts as one module
            if node.module:
                names = [(node.module.split(".")[0], node.level == 1 and "." not in node.module)]
            else:
                names = [(module_or_root(alias.name), False) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vtrim_hf":
            parts = (node.module or "").split(".")
            inside = parts[1:2] or [module_or_root(alias.name) for alias in node.names]
            names = [(name, False) for name in inside]
        found += [
            Import(module_name(path), name, node.lineno, flat, id(node) not in later)
            for name, flat in names
            if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
    return [i for i in found if path.parent == PACKAGE or i.imported != module_name(path)]


ALL_IMPORTS = [found for path in package_files() for found in imports_of(path)]


def test_the_table_is_sound() -> None:
    modules = [module for group in JOBS.values() for module in group]
    assert len(modules) == len(set(modules)), "a module does one job"
    assert set(MAY_IMPORT) == set(JOBS)
    assert set(SHIPPED) <= set(modules)


def test_every_module_is_in_the_table() -> None:
    unknown = {module_name(path) for path in package_files()} - set(JOB_OF)
    assert not unknown, f"give these modules a job in JOBS: {sorted(unknown)}"
    assert len(package_files()) > 10


def test_imports_go_one_way() -> None:
    wrong = []
    for found in ALL_IMPORTS:
        job, other = JOB_OF.get(found.importer, "?"), JOB_OF.get(found.imported, "?")
        if other != job and other not in MAY_IMPORT.get(job, frozenset()):
            wrong.append(f"{found} ({job} may import {sorted(MAY_IMPORT.get(job, ()))})")
    assert not wrong, "\n".join(wrong)


def test_there_is_no_circle() -> None:
    """A class may import what builds it inside a function; while importing nothing points back."""
    graph: dict[str, set[str]] = {}
    for found in ALL_IMPORTS:
        if found.at_import:
            graph.setdefault(found.importer, set()).add(found.imported)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(graph):
        visit(module, ())


def test_a_file_s_name_is_written_down_once() -> None:
    """[search.json and training_report.json were twice]; shipped modules stand alone."""
    found: dict[str, list[str]] = {}
    for path in package_files():
        if module_name(path) in SHIPPED:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found.setdefault(node.targets[0].id, []).append(path.name)
    several = {
        name: files
        for name, files in found.items()
        if name.endswith("_JSON") and not name.startswith("_") and len(files) > 1
    }
    assert not several, several
    assert {"SEARCH_JSON", "TRAINING_JSON"} <= set(found)


def test_nothing_imports_the_command() -> None:
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if JOB_OF.get(found.imported) == "command" != JOB_OF.get(found.importer)
    ]
    assert not wrong, "\n".join(wrong)


def test_shipped_modules_stand_alone() -> None:
    wrong = [
        str(found)
        for found in ALL_IMPORTS
        if found.importer in SHIPPED and not (found.flat and found.imported in SHIPPED)
    ]
    assert not wrong, "shipped modules import each other as `from .name import x`:\n" + "\n".join(
        wrong
    )


@pytest.mark.parametrize("path", package_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_length(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST_MODULE, f"{path.name} has {lines} lines: split it by its jobs"


def test_a_forbidden_import_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk finds every spelling of an import, inside functions too."""
    source = (
        "import vtrim_hf.cli\nfrom vtrim_hf.search import a\nfrom .latency import b\n"
        "from . import hub\nfrom vtrim_hf import TokenCounts\n"
        "def f():\n    from .cli import main\n"
        "if TYPE_CHECKING:\n    from .token_counts import TokenCounts\n"
    )
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (tmp_path / "bad.py").write_text(source)
    (tmp_path / "hub.py").touch()
    imports = imports_of(tmp_path / "bad.py")
    found = {(i.line, i.imported, i.flat, i.at_import) for i in imports}
    assert found == {
        (1, "cli", False, True),
        (2, "search", False, True),
        (3, "latency", True, True),
        (4, "hub", False, True),
        (5, "__init__", False, True),
        (7, "cli", True, False),
        (9, "token_counts", True, False),
    }


HEAVY = ("optuna", "datasets", "evaluate", "accelerate", "matplotlib")

MEASURE_IMPORT = """
import json, sys, time
start = time.perf_counter()
from transformers import AutoModelForCausalLM, GenerationMixin, PreTrainedModel
between = time.perf_counter()
before = set(sys.modules)
import vtrim_hf
for name in set(vtrim_hf.__all__) - set(vtrim_hf._LATER):
    getattr(vtrim_hf, name)
end = time.perf_counter()
print(json.dumps({
    "base": between - start, "ours": end - between, "new": sorted(set(sys.modules) - before)
}))
"""


def measure_import() -> dict[str, float | list[str]]:
    process = subprocess.run(
        [sys.executable, "-c", MEASURE_IMPORT],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(process.stdout))


def test_import_is_light() -> None:
    """Up to four processes, the best of which counts: a busy machine slows some, not all."""
    ratios = []
    for _ in range(4):
        measured = measure_import()
        new = measured["new"]
        assert isinstance(new, list)
        assert not [name for name in new if name.split(".")[0] in HEAVY]
        base, ours = measured["base"], measured["ours"]
        assert isinstance(base, float)
        assert isinstance(ours, float)
        ratios.append((base + ours) / base)
        if min(ratios) <= 1.1:
            return
    pytest.fail(f"import vtrim_hf takes {min(ratios):.2f} times what Transformers' names take")
