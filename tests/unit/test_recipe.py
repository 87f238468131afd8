"""Recipes: what a good one says, and that every mistake is shown with its line, all at once."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from vtrim_hf import search_vocabulary
from vtrim_hf.recipe import (
    DraftChoice,
    EagleChoice,
    FromTarget,
    ModelChoice,
    TrainChoice,
    load_recipe,
)
from vtrim_hf.recipe_settings import SMALLEST
from vtrim_hf.recipe_yaml import RecipeError

ROOT = Path(__file__).resolve().parents[2]
READY = sorted((ROOT / "examples" / "recipes").glob("*.yaml"))

GOOD = """\
target: smollm2
draft:
  model: smollm2
  layers: 24
domains:
  sql:
    train: sql.jsonl
    test: sql.jsonl
"""

TRAINED = """\
target: smollm2
draft:
  body: eagle3
  layers: [2, 15, 27]
domains:
  sql:
    train: sql.jsonl
    test: sql.jsonl
train:
  minutes: 34
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sql.jsonl").write_text("{}\n", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("-", encoding="utf-8")
    (tmp_path / "model").mkdir()
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(folder: Path, text: str) -> list[tuple[int, str]]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(folder, text))
    return [(mistake.line, mistake.text) for mistake in caught.value.mistakes]


def test_a_small_recipe_and_its_defaults(folder: Path) -> None:
    recipe = load_recipe(write(folder, GOOD))
    assert recipe.name == "recipe"
    assert recipe.target == ModelChoice("smollm2")
    assert recipe.draft.layers == 24
    assert recipe.draft.dtype == "bfloat16"
    (domain,) = recipe.domains
    assert domain.train == (str((folder / "sql.jsonl").resolve()),)
    assert domain.from_target is None
    assert (domain.heldout, domain.weight, domain.floor) == (0.2, 1.0, None)
    assert recipe.scopes == (None,)
    assert recipe.measure is not None
    assert recipe.measure.compare_full
    assert recipe.publish is None
    assert recipe.where("domains.sql.train") == f"{folder / 'recipe.yaml'}:7"
    assert recipe.where("domains.sql.floor") == f"{folder / 'recipe.yaml'}:6"


def test_everything_that_can_be_said(folder: Path) -> None:
    recipe = load_recipe(
        write(
            folder,
            """\
name: mine
target: {model: me/target, revision: v1}
draft: {model: model, layers: 2, dtype: float32, draft_length: 3}
drafts: per_domain
count:
  heldout: 0.3
  strict: yes
  from_target: {limit: 5}
domains:
  no:    # a word that YAML takes for false
    train: [sql.jsonl, me/data]
    split: train
    floor: 1e-1
    weight: 2
    from_target: {max_new_tokens: 7}
  ner:
    train: sql.jsonl
    heldout: 0.5
    from_target: false
search: {alpha: 0.4, min_coverage: 0.9, k_min: 10, k_max: 20, method: tpe, trials: 3, keep: a}
measure: off
publish:
  repo_id: me/draft-{domain}
  license: apache-2.0
  private: true
  endpoint: http://127.0.0.1:8090
""",
        )
    )
    assert recipe.target == ModelChoice("me/target", "v1")
    assert isinstance(recipe.draft, DraftChoice)
    assert recipe.draft.model.name == str((folder / "model").resolve())
    assert (recipe.train, recipe.making) == (None, "trim")
    assert recipe.steps == ("count", "search", "trim", "measure", "publish")
    first, second = recipe.domains
    assert first.name == "no"
    assert first.train[1] == "me/data"
    assert first.from_target == FromTarget(limit=5, max_new_tokens=7)
    assert (first.heldout, first.strict, first.floor, first.weight) == (0.3, True, 0.1, 2.0)
    assert second.from_target is None
    assert second.heldout == 0.5
    assert recipe.scopes == ("no", "ner")
    assert [domain.name for domain in recipe.domains_of("ner")] == ["ner"]
    assert recipe.search.keep == ("a",)
    assert recipe.measure is None
    assert recipe.publish is not None
    assert recipe.publish.private


@pytest.mark.parametrize(
    ("more", "index"),
    [
        ("", "me/x-family"),
        ("  index: true\n", "me/x-family"),
        ("  index: me/all\n", "me/all"),
        ("  index: false\n", None),
        ("  index:\n", None),
        ("  create_pr: true\n", None),
    ],
)
def test_drafts_of_several_domains_get_an_index(
    folder: Path, more: str, index: str | None
) -> None:
    text = changed("sql:\n", "b: {train: sql.jsonl}\n  sql:\n") + APART + more
    recipe = load_recipe(write(folder, text))
    assert recipe.publish is not None
    assert recipe.publish.index == index


def test_the_draft_of_one_domain_gets_an_index_only_if_asked(folder: Path) -> None:
    for more, index in (("", None), ("  index: true\n", "me/x-family")):
        recipe = load_recipe(write(folder, GOOD + APART + more))
        assert recipe.publish is not None
        assert recipe.publish.index == index


def test_a_draft_that_is_trained(folder: Path) -> None:
    recipe = load_recipe(write(folder, TRAINED))
    assert recipe.draft == EagleChoice((2, 15, 27))
    assert recipe.train == TrainChoice(minutes=34)
    assert recipe.making == "train"
    assert recipe.steps == ("count", "search", "train", "measure", "publish")
    body = "  dtype: float32\n  draft_length: 4\n  mlp_width: 512\n"
    text = trained("  layers: [2, 15, 27]\n", body)
    every = """\
train:
  epochs: 2.5
  unroll: 3
  learning_rate: 1e-3
  batch_size: 8
  accumulate: 2
  max_length: 512
  bf16: true
  target_dtype: float32
  seed: 0
  feature_cache: cache/features
  tensorboard: true
"""
    recipe = load_recipe(write(folder, text[: text.index("train:\n")] + every))
    assert recipe.draft == EagleChoice(None, "float32", 4, 512)
    assert recipe.train == TrainChoice(
        None, 2.5, 3, 0.001, 8, 2, 512, True, "float32", 0,
        str((folder / "cache" / "features").resolve()), tensorboard=True,
    )  # fmt: skip
    # All of it may be left out.
    recipe = load_recipe(write(folder, text[: text.index("train:\n")]))
    assert recipe.train == TrainChoice()
    recipe = load_recipe(write(folder, text.replace("minutes: 34", "feature_cache: none")))
    assert recipe.train == TrainChoice(feature_cache="none")
    for word in ("false", "null"):
        assert load_recipe(write(folder, GOOD + f"train: {word}\n")).train is None


def trained(old: str, new: str) -> str:
    assert old in TRAINED
    return TRAINED.replace(old, new)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (trained("  layers:", "  model: smollm2\n  layers:"), 4, "leave model out, or body"),
        (trained("  layers:", "  mlp_width: 0\n  layers:"), 4, "mlp_width must be a whole number"),
        (GOOD.replace("layers: 24", "mlp_width: 24"), 4, "no field 'mlp_width'"),
        (trained("  layers:", "  revision: v1\n  layers:"), 4, "draft.revision names a model"),
        (trained("eagle3", "eagle"), 3, "did you mean 'eagle3'?"),
        (trained("[2, 15, 27]", "24"), 4, "must be 3 ascending whole numbers"),
        (trained("[2, 15, 27]", "[2, 15]"), 4, "got [2, 15]: write them as [2, 15, 27]"),
        (trained("[2, 15, 27]", "[15, 2, 27]"), 4, "ascending"),
        (trained("[2, 15, 27]", "[2, 2, 27]"), 4, "ascending"),
        (trained("[2, 15, 27]", "[2, 15, x]"), 4, "whole numbers"),
        (trained("[2, 15, 27]", "[-1, 15, 27]"), 4, "whole numbers"),
        (trained("[2, 15, 27]", "[true, 15, 27]"), 4, "whole numbers"),
        (trained("    test: sql.jsonl", "    text_column: a"), 8, "no draft can be trained on it"),
        (trained("minutes: 34", "minutes: 0"), 10, "train.minutes must be a number above 0"),
        (trained("minutes: 34", "epochs: -1"), 10, "train.epochs"),
        (trained("minutes: 34", "unroll: 0"), 10, "train.unroll"),
        (trained("minutes: 34", "learning_rate: 2"), 10, "at most 1, got 2"),
        (trained("minutes: 34", "batch_size: 0"), 10, "train.batch_size"),
        (trained("minutes: 34", "accumulate: 1.5"), 10, "train.accumulate"),
        (trained("minutes: 34", "max_length: 2"), 10, "of at least 3, got 2"),
        (trained("minutes: 34", "bf16: maybe"), 10, "must be true or false"),
        (trained("minutes: 34", "tensorboard: logs"), 10, "must be true or false"),
        (trained("minutes: 34", "target_dtype: int8"), 10, "one of auto, float32"),
        (trained("minutes: 34", "seed: -1"), 10, "train.seed"),
        (trained("minutes: 34", "feature_cache: sql.jsonl"), 10, "is a file"),
        (trained("minutes: 34", "feature_cache: ~nobody-of-this-name/x"), 10, "is no folder's"),
        (trained("minutes: 34", "minute: 34"), 10, "did you mean 'minutes'?"),
        (trained("  minutes: 34\n", "  regenerate: true\n"), 10, "no field 'regenerate'"),
        (trained("train:\n  minutes: 34\n", "train: false\n"), 9, "must be a mapping"),
        (GOOD + "train: {minutes: 34}\n", 9, "say draft: {body: eagle3} without a model"),
        (GOOD + "train: {}\n", 9, "this recipe cuts one"),
        (GOOD.replace("layers: 24", "layers: [2, 15, 27]"), 4, "how many of its first layers"),
        (GOOD.replace("layers: 24", "body: standalone\n  layers: x"), 5, "draft.layers"),
    ],
)
def test_a_mistake_in_training_is_shown_with_its_line(
    folder: Path, text: str, line: int, said: str
) -> None:
    found = mistakes(folder, text)
    assert any(at == line and said in told for at, told in found), found


APART = """\
drafts: per_domain
publish:
  license: mit
  repo_id: me/x-{domain}
"""
"""What publishes a draft of each domain, after the domains."""


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "empty"),
        ("a: [\n", 2, "no YAML"),
        ("- a\n", 1, "a recipe must be a mapping of fields, got a list"),
        ("[" * 3000, 1, "no YAML"),
        (GOOD + "a: !!python/object:os.system {}\n", 9, "a recipe has no field 'a'"),
        (GOOD + "name: !!set {x}\n", 9, "name must be text, got a mapping"),
        (GOOD + "name: !odd x\n", 9, "the tag '!odd'"),
        (GOOD + "name: &x [*x]\n", 9, "holds itself"),
        (GOOD + "? [a]\n: b\n", 9, "a key must be a word"),
        (GOOD + "target: b\n", 9, "'target' stands twice, first on line 1"),
        (
            changed("    test:", "    train: x\n    test:"),
            8,
            "'train' stands twice, first on line 7",
        ),
        (GOOD + "serach: {}\n", 9, "a recipe has no field 'serach'; did you mean 'search'?"),
        (changed("layers", "layer"), 4, "draft has no field 'layer'; did you mean 'layers'?"),
        (GOOD + "search:\n  alhpa: 1\n", 10, "did you mean 'alpha'?"),
        (GOOD + "zebra: 1\n", 9, "it may hold"),
        (changed("target: smollm2\n", ""), 1, "target is missing"),
        (changed("  model: smollm2\n", ""), 2, "draft.model is missing"),
        ("target: smollm2\ndomains: {a: {train: sql.jsonl}}\n", 1, "draft is missing"),
        ("target: smollm2\ndraft: {model: smollm2}\n", 1, "domains is missing"),
        ("target: smollm2\ndraft: {model: smollm2}\ndomains: {}\n", 3, "at least one domain"),
        (changed("    train: sql.jsonl\n", ""), 6, "domains.sql.train is missing"),
        (
            changed("layers: 24", "layers: 0"),
            4,
            "draft.layers must be a whole number of at least 1, got 0",
        ),
        (changed("layers: 24", "layers: 2.5"), 4, "got 2.5"),
        (changed("layers: 24", "layers: true"), 4, "got True"),
        (changed("layers: 24", "dtype: float8"), 4, "draft.dtype must be one of"),
        (changed("layers: 24", "dtype: bflot16"), 4, "did you mean 'bfloat16'?"),
        (changed("layers: 24", "revision: main"), 4, "is for a Hub id"),
        (changed("target: smollm2", "target: ./gone"), 1, "no folder"),
        (changed("target: smollm2", "target: notes.txt"), 1, "names a file"),
        (
            changed("target: smollm2", "target: 3"),
            1,
            "target must be text, got 3; put it in quotes",
        ),
        (changed("target: smollm2", "target:"), 1, "target is empty"),
        (changed("train: sql.jsonl", "train: gone.jsonl"), 7, "there is no file or folder"),
        (changed("test: sql.jsonl", "test: ../gone/x"), 8, "relative to the recipe"),
        (changed("train: sql.jsonl", "train: notes.txt"), 7, "must end in one of"),
        (changed("train: sql.jsonl", "train: []"), 7, "an empty list"),
        (changed("train: sql.jsonl", "train: [sql.jsonl, 1]"), 7, "got 1"),
        (changed("sql:", "s/q:"), 6, "a domain's name must be letters"),
        (changed("sql:\n", "SQL: {train: sql.jsonl}\n  sql:\n"), 5, "differ only in case"),
        (changed("test: sql.jsonl", "floor: 1.5"), 8, "domains.sql.floor must be a number"),
        (changed("test: sql.jsonl", "floor: .nan"), 8, "domains.sql.floor must be a number"),
        (changed("test: sql.jsonl", "weight: -1"), 8, "of at least 0 and at most 1e+06, got -1"),
        (changed("test: sql.jsonl", "weight: 0"), 5, "weight above 0"),
        (changed("test: sql.jsonl", "heldout: 1"), 8, "at most 0.9, got 1"),
        (changed("test: sql.jsonl", "heldout: 0.9999"), 8, "at most 0.9, got 0.9999"),
        (GOOD + "count: {heldout: 0.95}\n", 9, "at most 0.9"),
        (changed("test: sql.jsonl", "weight: 1e300"), 8, "at most 1e+06"),
        (changed("test: sql.jsonl", "weight: 1e-300"), 8, "must be 0 or at least 1e-06"),
        (changed("test: sql.jsonl", f"weight: 1{'0' * 400}"), 8, "at most 1e+06"),
        (changed("test: sql.jsonl", "text_column: a"), 8, "no prompts to measure"),
        (changed("train: sql.jsonl", "train: [sql.jsonl, ./sql.jsonl]"), 7, "twice"),
        (changed("train: sql.jsonl", f"train: {'x' * 5000}.jsonl"), 7, "no file or folder"),
        (changed("train: sql.jsonl", "train: ~nobody-of-this-name/x.jsonl"), 7, "no file"),
        (changed("train: sql.jsonl", 'train: "a\\0.jsonl"'), 7, "holds a NUL"),
        (changed("sql:", f"{'x' * 300}:"), 6, "at most 100, the first"),
        (GOOD + f"name: {'x' * 300}\n", 9, "at most 100, the first"),
        (changed("layers: 24", "draft_length: 1001"), 4, "at most 1,000, got 1001"),
        (changed("layers: 24", "layers: 10000000000"), 4, "at most 1,000,000,000"),
        (GOOD + "measure: {prompts: 99999999999999999999}\n", 9, "at most 1,000,000"),
        (GOOD + f"measure: {{prompts: 1{'0' * 5000}}}\n", 9, "cannot be read"),
        (GOOD + f"search: {{k_min: 1{'0' * 30}}}\n", 9, "at most 1,000,000,000"),
        (GOOD + "search: {k_max: 5}\n", 9, "k_min is 50 by default, which is more than k_max, 5"),
        (GOOD + "search: {seed: 4294967296, method: tpe}\n", 9, "search.seed"),
        (GOOD + 'search: {keep: ["\\ud800"]}\n', 9, "half a character"),
        (GOOD + "name: &a b\n<<: *a\n", 10, "merge keys"),
        (changed("  layers: 24", "  <<: {layers: 24}"), 4, "merge keys"),
        (changed("test: sql.jsonl", "heldout: 0"), 5, "nothing to measure it on"),
        (changed("test: sql.jsonl", "test_split: test"), 8, "needs test"),
        (
            changed("test: sql.jsonl", "from_target: 3"),
            8,
            "must be a mapping of fields, got a number",
        ),
        (changed("test: sql.jsonl", "from_target: {limit: 0}"), 8, "from_target.limit"),
        (changed("test: sql.jsonl", "from_target: {text: 0}"), 8, "no field 'text'"),
        (
            changed("test: sql.jsonl", "text_column: a\n    from_target: true"),
            8,
            "leave one of them out",
        ),
        (GOOD + "count: {heldout: half}\n", 9, "count.heldout must be a number"),
        (GOOD + "drafts: apart\n", 9, "drafts must be one of together, per_domain"),
        (GOOD + "search: {k_min: 9, k_max: 8}\n", 9, "more than k_max"),
        (GOOD + "search: {preset: paper, alpha: 0.4}\n", 9, "sets alpha to 0.5"),
        (GOOD + "search: {preset: paper, keep: x}\n", 9, "keeps nothing"),
        (GOOD + "search: {trials: 5}\n", 9, "is for the method tpe"),
        (GOOD + "search: {cost: watts}\n", 9, "flops, bytes, measured"),
        (GOOD + "search: {keep: {a: b}}\n", 9, "text or a list of texts, got a mapping"),
        (GOOD + "search: 5\n", 9, "search must be a mapping of fields, got a number"),
        (GOOD + "measure: {prompts: many}\n", 9, "got 'many'"),
        (GOOD + "measure: {plain_dtypes: [float32, int8]}\n", 9, "got 'int8'"),
        (GOOD + "measure: {min_speedup: 0}\n", 9, "above 0 and at most 1000, got 0"),
        (GOOD + "measure: {compare_full: maybe}\n", 9, "must be true or false"),
        (GOOD + "publish: {}\n", 9, "publish.repo_id is missing"),
        (GOOD + "publish: {repo_id: me/x}\n", 9, "publish.license is missing"),
        (GOOD + "publish: {repo_id: draft}\n", 9, "owner/name"),
        (GOOD + "publish:\n  repo_id: me/x\n  license: apache2\n", 11, "no licence 'apache2'"),
        (GOOD + "publish:\n  repo_id: me/x\n  revision: a..b\n", 11, "publish.revision: "),
        (
            GOOD + "publish:\n  create_pr: true\n  revision: next\n",
            11,
            "publish.create_pr proposes to main",
        ),
        (GOOD + "publish: {repo_id: me/--x}\n", 9, "no name of a repository"),
        (GOOD + "publish: {repo_id: 'me/{x}'}\n", 9, "no other braces"),
        (GOOD + "publish: {repo_id: 'me/{'}\n", 9, "is no name"),
        (GOOD + "publish: {repo_id: 'me/{domain}'}\n", 9, "say drafts: per_domain"),
        (
            changed("sql:\n", "b: {train: sql.jsonl}\n  sql:\n")
            + "drafts: per_domain\npublish: {repo_id: me/x}\n",
            11,
            "must hold {domain}",
        ),
        (GOOD + "publish: {repo_id: me/x, endpoint: localhost}\n", 9, "http://"),
        (GOOD + "publish: {repo_id: me/x, index: me/y}\n", 9, "index lists one draft a domain"),
        (GOOD + "publish: {repo_id: me/x, index: [a]}\n", 9, "index must be owner/name, true or"),
        *(
            (changed("sql:\n", "b: {train: sql.jsonl}\n  sql:\n") + APART + more, 14, said)
            for more, said in (
                ("  index: me\n", "publish.index: a draft is published as NAMESPACE/NAME"),
                ("  index: me/x-sql\n", "me/x-sql is a draft's"),
                ("  index: 5\n", "index must be owner/name, true or false"),
            )
        ),
        (
            changed("sql:\n", "b: {train: sql.jsonl}\n  sql:\n")
            + APART
            + "  create_pr: true\n  index: true\n",
            15,
            "index lists what is published, create_pr only proposes",
        ),
        (GOOD + "name: a/b\n", 9, "name must be letters"),
    ],
)
def test_a_mistake_is_shown_with_its_line(folder: Path, text: str, line: int, said: str) -> None:
    found = mistakes(folder, text)
    assert any(at == line and said in told for at, told in found), found


def test_all_mistakes_at_once(folder: Path) -> None:
    found = mistakes(
        folder,
        """\
target: ./gone
draft: {model: smollm2, layer: 3}
domains:
  sql: {train: gone.jsonl, floor: 2}
mesure: {}
""",
    )
    assert [line for line, _ in found] == [1, 2, 4, 4, 5]


def test_the_message_names_file_and_line(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"recipe\.yaml:4: draft\.layers") as caught:
        load_recipe(write(folder, changed("layers: 24", "layers: 0") + "x: 1\n"))
    assert str(caught.value).startswith("2 mistakes in the recipe")
    with pytest.raises(FileNotFoundError, match="no recipe at"):
        load_recipe(folder / "gone.yaml")
    (folder / "latin.yaml").write_bytes(b"target: \xff\n")
    with pytest.raises(RecipeError, match="no UTF-8"):
        load_recipe(folder / "latin.yaml")


def test_aliases_are_cheap_and_work(folder: Path) -> None:
    bomb = "".join(
        f"a{i}: &a{i} [{', '.join(f'*a{i - 1}' for _ in range(9))}]\n" for i in range(1, 9)
    )
    assert len(mistakes(folder, "a0: &a0 [x]\n" + bomb)) < 30
    text = GOOD.replace("train: sql.jsonl", "train: &data sql.jsonl")
    recipe = load_recipe(write(folder, text.replace("test: sql.jsonl", "test: *data")))
    assert recipe.domains[0].test == recipe.domains[0].train[0]


def test_null_switches_off_as_false_does(folder: Path) -> None:
    """And `from_target` says so for one domain against what `count` says for all."""
    for word in ("false", "null", ""):
        text = GOOD + f"    from_target: {word}\ncount: {{from_target: true}}\n"
        recipe = load_recipe(write(folder, text + f"measure: {word}\npublish: {word}\n"))
        assert (recipe.measure, recipe.publish) == (None, None)
        assert recipe.domains[0].from_target is None
        recipe = load_recipe(write(folder, GOOD + f"count: {{from_target: {word}}}\n"))
        assert recipe.domains[0].from_target is None
    text = (
        GOOD + "    from_target: {limit: null}\ncount: {from_target: {limit: 5, batch_size: 2}}\n"
    )
    assert load_recipe(write(folder, text)).domains[0].from_target == FromTarget(batch_size=2)


def test_the_smallest_size_is_that_of_the_search() -> None:
    default = inspect.signature(search_vocabulary).parameters["k_min"].default
    assert default == SMALLEST


def test_a_recipe_is_a_value(folder: Path) -> None:
    recipe: Any = load_recipe(write(folder, GOOD))
    with pytest.raises(AttributeError):
        recipe.name = "other"


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_the_ready_recipes_are_good(path: Path, tmp_path: Path) -> None:
    """As they stand, and with what is commented out put in."""
    recipe = load_recipe(path)
    text = path.read_text(encoding="utf-8")
    assert f"vtrim run examples/recipes/{path.name}" in text
    optional = re.sub(r"^( *)# (publish:|  \w+:|\w+: )", r"\1\2", text, flags=re.MULTILINE)
    optional = optional.replace("../data", str(ROOT / "examples" / "data"))
    assert optional != text
    again = load_recipe(write(tmp_path, optional))
    assert again.domains == recipe.domains


def test_there_are_ready_recipes() -> None:
    assert len(READY) >= 4
