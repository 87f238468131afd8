"""`Recipe`: the whole pipeline as one value, read from a YAML file and checked before it is used.

target: smollm2
draft: {model: smollm2, layers: 24}
domains:
  sql: {train: sql.jsonl, test: sql_test.jsonl}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEPS = ("count", "search", "trim", "train", "measure", "publish")
"""In the order in which they run. No recipe has all: a draft is cut (trim) or trained (train)."""

DTYPES = ("float32", "bfloat16", "float16")
TOGETHER, PER_DOMAIN = "together", "per_domain"


@dataclass(frozen=True)
class ModelChoice:
    """A model: embedded name, Hub id or folder, and the revision of a Hub id."""

    name: str
    revision: str | None = None


@dataclass(frozen=True)
class DraftChoice:
    """The draft that is cut.

    Attributes:
        model: the small model.
        layers: its first layers only; None for all.
        dtype: of the weights that are saved.
        draft_length: tokens drafted a round; None for the library's default.
    """

    model: ModelChoice
    layers: int | None = None
    dtype: str = "bfloat16"
    draft_length: int | None = None


@dataclass(frozen=True)
class EagleChoice:
    """The draft with an EAGLE-3 body, which is made for the target and trained.

    Attributes:
        layers: which three of the target's hidden states it reads; None for EAGLE-3's choice.
        mlp_width: of its MLP; None for the target's.
        dtype: of the weights that are saved.
        draft_length: tokens drafted a round; None for the library's default.
    """

    layers: tuple[int, ...] | None = None
    dtype: str = "bfloat16"
    draft_length: int | None = None
    mlp_width: int | None = None


@dataclass(frozen=True)
class TrainChoice:
    """How a draft is trained; None leaves the default of `DraftTrainingArguments`.

    Attributes:
        minutes: stop in this time; the target's answers, which are counted, are not part of it.
        epochs: passes over the data.
        unroll: tokens drafted in a row.
        learning_rate: the highest one.
        batch_size: conversations a step and device.
        accumulate: batches whose gradients are summed.
        max_length: tokens of a conversation at most.
        bf16: compute in bfloat16; None where the machine is fast at it.
        target_dtype: of the target's weights meanwhile; "auto" takes the saved one.
        seed: of weights and order.
        feature_cache: folder of the target's features; "auto" or "none".
        unroll_warmup: share of the training, at its begin, that drafts half as many in a row.
        tensorboard: log for TensorBoard, in `train.tensorboard` beside the draft's folder.
    """

    minutes: float | None = None
    epochs: float | None = None
    unroll: int | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    accumulate: int | None = None
    max_length: int | None = None
    bf16: bool | None = None
    target_dtype: str = "auto"
    seed: int = 42
    feature_cache: str = "auto"
    unroll_warmup: float | None = None
    tensorboard: bool = False


@dataclass(frozen=True)
class FromTarget:
    """The target answers a domain's prompts, and its own words are counted.

    Attributes:
        limit: prompts at most; None for all.
        max_new_tokens: longest answer.
        batch_size: prompts at once.
        dtype: of the target meanwhile; "auto" takes the saved one.
    """

    limit: int | None = None
    max_new_tokens: int = 256
    batch_size: int = 16
    dtype: str = "auto"


@dataclass(frozen=True)
class Domain:
    """What one domain consists of.

    Attributes:
        name: letters, digits, `_`, `.`, `-`.
        train: files, folders or Hub ids that are counted.
        test: where the prompts of the measurement come from; None for held-out conversations.
        split: split of `train`.
        test_split: split of `test`.
        text_column: count this column's text.
        heldout: share of conversations that judge the search and are not searched on.
        strict: stop at a malformed row.
        floor: least coverage of this domain, or None.
        weight: of this domain among the others.
        from_target: how the target answers, or None to count the data's answers.
    """

    name: str
    train: tuple[str, ...]
    test: str | None = None
    split: str | None = None
    test_split: str | None = None
    text_column: str | None = None
    heldout: float = 0.2
    strict: bool = False
    floor: float | None = None
    weight: float = 1.0
    from_target: FromTarget | None = None


@dataclass(frozen=True)
class SearchChoice:
    """How the vocabulary is chosen; None leaves the default of `search_vocabulary`."""

    cost: str = "flops"
    alpha: float | None = None
    min_coverage: float = 0.0
    k_min: int | None = None
    k_max: int | None = None
    multiple_of: int | None = None
    method: str | None = None
    trials: int | None = None
    seed: int | None = None
    preset: str | None = None
    keep: tuple[str, ...] = ()


@dataclass(frozen=True)
class MeasureChoice:
    """How the draft is measured.

    Attributes:
        prompts: of each domain.
        max_new_tokens: tokens generated a prompt.
        dtype: of target and drafts.
        draft_length: tokens drafted a round; None for the draft's own.
        plain_dtypes: in which the target alone is measured besides its own, the fastest being the
            baseline; None for the default of `measure_decoding`.
        compare_full: measure the same draft with the target's whole vocabulary, too.
        min_speedup: the goal for the median speed-up over the target alone, or None.
    """

    prompts: int = 20
    max_new_tokens: int = 128
    dtype: str = "float32"
    draft_length: int | None = None
    plain_dtypes: tuple[str, ...] | None = None
    compare_full: bool = True
    min_speedup: float | None = None


@dataclass(frozen=True)
class PublishChoice:
    """Where the draft goes.

    Attributes:
        repo_id: on the Hub; holds `{domain}` when there is one draft a domain.
        license: of the weights, an identifier of the Hub; not guessed. A cut one has its model's.
        private: whether a new repository is private; None for the Hub's default.
        endpoint: of another Hub than the usual one.
        revision: branch; None for main.
        create_pr: propose the change instead of making it.
        exist_ok: write into a repository that is there already.
        despite_missed_goal: publish a draft that missed `min_speedup`, too.
        index: repository that lists the drafts of several domains; None for none.
    """

    repo_id: str
    license: str
    private: bool | None = None
    endpoint: str | None = None
    revision: str | None = None
    create_pr: bool = False
    exist_ok: bool = False
    despite_missed_goal: bool = False
    index: str | None = None


@dataclass(frozen=True)
class Recipe:
    """A checked recipe.

    Attributes:
        name: of the recipe.
        path: the file.
        text: the file's text.
        target: the model that is to be made faster.
        draft: the draft that is cut or trained for it.
        domains: in the file's order.
        drafts: "together" for one draft of all domains, "per_domain" for one each.
        search: how the vocabulary is chosen.
        train: how the draft is trained; None for one that is cut.
        measure: how the draft is measured; None for not at all.
        publish: where it goes; None for nowhere.
        lines: line of each field that is given, by its place, such as `domains.sql.train`.
    """

    name: str
    path: Path
    text: str = field(repr=False)
    target: ModelChoice
    draft: DraftChoice | EagleChoice
    domains: tuple[Domain, ...]
    drafts: str = TOGETHER
    search: SearchChoice = field(default_factory=SearchChoice)
    train: TrainChoice | None = None
    measure: MeasureChoice | None = field(default_factory=MeasureChoice)
    publish: PublishChoice | None = None
    lines: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def making(self) -> str:
        """The step that makes the draft: "trim" or "train"."""
        return "trim" if self.train is None else "train"

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that a run of it may have, in order."""
        return tuple(s for s in STEPS if s not in ("trim", "train") or s == self.making)

    @property
    def scopes(self) -> tuple[str | None, ...]:
        """One entry a draft: its domain, or None for the draft of all of them."""
        if self.drafts == TOGETHER:
            return (None,)
        return tuple(domain.name for domain in self.domains)

    def domains_of(self, scope: str | None) -> tuple[Domain, ...]:
        """Return the domains that a draft is for."""
        return tuple(domain for domain in self.domains if scope in (None, domain.name))

    def line(self, place: str) -> int:
        """Return the line of a field, or of the nearest section around it."""
        while place and place not in self.lines:
            place = place.rpartition(".")[0]
        return self.lines.get(place, 1)

    def mistake(self, place: str, text: str) -> ValueError:
        """Return an error that shows the line of a field."""
        from .recipe_yaml import Mistake, RecipeError

        return RecipeError(self.path, [Mistake(self.line(place), text)])

    def where(self, place: str) -> str:
        """Return file and line of a field, or of the nearest section around it."""
        return f"{self.path}:{self.line(place)}"


def is_place(name: str) -> bool:
    """Tell whether a checked recipe means a file or folder by a name of a model or of data.

    What stands beside the recipe became an absolute path when it was read; any other name is a Hub
    id or an embedded model, whatever the folder holds that a run is started in.
    """
    return Path(name).is_absolute()


def load_recipe(path: str | Path) -> Recipe:
    """Read a recipe and check all of it.

    Paths of data and models in it are relative to the file.

    Args:
        path: the YAML file.

    Raises:
        FileNotFoundError: if there is no such file.
        RecipeError: if anything in it is wrong; all mistakes are listed, each with its line. It is
            a ValueError.

    Example:
        ```python
        recipe = load_recipe("examples/recipes/wikisql_smollm2.yaml")
        print([domain.name for domain in recipe.domains])
        ```
    """
    from .recipe_sections import read_recipe
    from .recipe_yaml import Mistake, RecipeError, read_yaml

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no recipe at {path}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(path, [Mistake(1, f"this is no UTF-8 text: {error}")]) from error
    mistakes: list[Mistake] = []
    document = read_yaml(text, mistakes)
    recipe: Any = None if document is None else read_recipe(document, path, text, mistakes)
    if mistakes or recipe is None:
        raise RecipeError(path, mistakes)
    checked: Recipe = recipe
    return checked
