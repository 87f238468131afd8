"""YAML whose values know their lines, so that a mistake can be shown where it stands.

Only what a recipe needs: mappings, lists, texts, numbers, true, false and null. A key that stands
twice is a mistake (YAML's own loader would take the last one), and keys are texts as they are
written, so that a domain may be called `no` or `1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCALARS = ("str", "int", "float", "bool", "null")
_DEEPEST = 20


@dataclass(frozen=True)
class Located:
    """A value and the line on which it begins.

    Attributes:
        value: text, number, bool or None; of a mapping `dict[str, Entry]`, of a list
            `list[Located]`.
        line: from 1.
    """

    value: Any
    line: int

    @property
    def kind(self) -> str:
        """What it is, in words."""
        names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false"}
        if self.value is None:
            return "nothing"
        return names.get(type(self.value), "a number")


@dataclass(frozen=True)
class Entry:
    """A value of a mapping, and the line of its key."""

    key_line: int
    located: Located


@dataclass(frozen=True, order=True)
class Mistake:
    """What is wrong, and where.

    Attributes:
        line: from 1.
        text: the rule, what was found, and the way out.
    """

    line: int
    text: str


class RecipeError(ValueError):
    """A recipe with mistakes, all of which are listed with their lines.

    Attributes:
        path: the recipe.
        mistakes: in order of their lines.
    """

    def __init__(self, path: Path, mistakes: list[Mistake]) -> None:
        self.path = path
        self.mistakes = tuple(sorted(set(mistakes)))
        lines = [f"{path}:{mistake.line}: {mistake.text}" for mistake in self.mistakes]
        number = len(lines)
        head = f"{number} mistakes in the recipe:\n  " if number > 1 else ""
        super().__init__(head + "\n  ".join(lines))


def read_yaml(text: str, mistakes: list[Mistake]) -> Located | None:
    """Read YAML text.

    Args:
        text: one document.
        mistakes: what is wrong is added to them; a value that is wrong is left out.

    Returns:
        The document, or None if it is no YAML at all or empty.
    """
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        mistakes.append(Mistake(mark.line + 1 if mark else 1, f"this is no YAML: {what}"))
        return None
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split()) or "nested without end"
        mistakes.append(Mistake(1, f"this is no YAML: {reason}"))
        return None
    if node is None:
        mistakes.append(Mistake(1, "the recipe is empty: it needs target, draft and domains"))
        return None
    return _Reader(mistakes).read(node, 0)


class _Reader:
    def __init__(self, mistakes: list[Mistake]) -> None:
        import yaml

        self._mistakes = mistakes
        self._yaml = yaml
        self._scalars = yaml.constructor.SafeConstructor()
        self._known: dict[int, Located | None] = {}  # what an alias names again is read once
        self._open: set[int] = set()

    def read(self, node: Any, depth: int) -> Located | None:
        if id(node) in self._open:
            self._wrong(node.start_mark.line + 1, "this value holds itself")
            return None
        if id(node) not in self._known:
            self._open.add(id(node))
            self._known[id(node)] = self._read(node, depth)
            self._open.remove(id(node))
        return self._known[id(node)]

    def _read(self, node: Any, depth: int) -> Located | None:
        line = node.start_mark.line + 1
        if depth > _DEEPEST:
            self._wrong(line, f"values may be nested {_DEEPEST} deep")
            return None
        if isinstance(node, self._yaml.MappingNode):
            return Located(self._entries(node, depth), line)
        if isinstance(node, self._yaml.SequenceNode):
            items = (self.read(item, depth + 1) for item in node.value)
            return Located([item for item in items if item is not None], line)
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if kind == "timestamp":  # 2025-01-01 is a name here
            return Located(node.value, line)
        if kind not in _SCALARS:
            self._wrong(line, f"the tag {node.tag!r} has no meaning in a recipe")
            return None
        if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in node.value):
            # Neither a file's name nor a tokenizer takes them.
            self._wrong(line, f"{node.value!r:.60} holds a NUL or half a character (a surrogate)")
            return None
        try:
            return Located(self._scalars.construct_object(node), line)
        except (self._yaml.YAMLError, ValueError) as error:
            self._wrong(line, f"{node.value!r:.60} cannot be read: {error}")
            return None

    def _entries(self, node: Any, depth: int) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        first: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, self._yaml.ScalarNode):
                self._wrong(line, "a key must be a word, this one is a list or a mapping")
                continue
            name = key.value
            if key.tag == "tag:yaml.org,2002:merge":
                self._wrong(line, "merge keys (<<) have no meaning in a recipe: write the fields")
                continue
            if name in first:
                self._wrong(
                    line, f"{name!r} stands twice, first on line {first[name]}: leave one of them"
                )
                continue
            first[name] = line
            located = self.read(value, depth + 1)
            if located is not None:
                entries[name] = Entry(line, located)
        return entries

    def _wrong(self, line: int, text: str) -> None:
        """Note a mistake; there is then no value."""
        self._mistakes.append(Mistake(line, text))
