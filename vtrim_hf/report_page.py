"""`build_report`: one HTML page of whatever a run, a search, a training or a measurement left.

The page holds everything that it shows and asks for nothing outside of it: it opens without a
network, runs no script, and tells its browser to load nothing. The same files give the same page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from .report_blocks import DAMAGED, Block, Grid, Section, code, damage, grid, shown, text
from .report_evidence import figures_section, picture_section, words_section
from .report_files import Found, Kind, look_through
from .report_run import missing_parts, run_section
from .report_sections import coverage_section, search_section
from .report_speed import measurement_section, training_section
from .vocabulary_files import write_atomically

PAGE = "report.html"
_TEMPLATE = "report_page.html.jinja"
_NO_PLOTS = "Plots are left out: matplotlib is missing. `pip install 'vtrim_hf[plots]'` brings it."

_MAKERS: dict[Kind, Callable[..., Section]] = {
    Kind.search: search_section,
    Kind.training: training_section,
    Kind.measurement: measurement_section,
    Kind.coverage: coverage_section,
    Kind.words: words_section,
    Kind.picture: picture_section,
    Kind.drawn: picture_section,
    Kind.figures: figures_section,
}
"""By kind in the order of the page, of the files of one draft."""

_ABSENT = (
    ((Kind.search,), "search curve, Pareto front", "vtrim search COUNTS -o FOLDER"),
    ((Kind.training,), "training curves", "vtrim train TARGET DATA --vocabulary FOLDER -o FOLDER"),
    (
        (Kind.measurement,),
        "speed, acceptance by position, time by part",
        "vtrim measure TARGET DRAFT PROMPTS -o FOLDER",
    ),
    (
        (Kind.coverage, Kind.measurement),
        "tokens most missed",
        "vtrim measure TARGET DRAFT PROMPTS -o FOLDER",
    ),
)


@dataclass(frozen=True)
class ReportPage:
    """A finished page.

    Attributes:
        html: the whole of it.
        sections: what it tells, in order.
    """

    html: str
    sections: tuple[Section, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What is missing or broken, one sentence or more a section."""
        return tuple(f"{one.title}: {one.problem}" for one in self.sections if one.problem)


def build_report(run_dir: str | Path, output: str | Path | None = None) -> Path:
    """Write one self-contained HTML page of what lies in a folder.

    It holds tables and plots of each search result (Pareto front, search curve), decode report
    (speed, time by part, acceptance by position, tokens most missed), training report (curves),
    `vtrim/coverage.json`, run and benchmark in the folder and below. A file that is missing or
    broken is named with the reason; the rest is shown all the same.

    Args:
        run_dir: a run's folder, or one that `vtrim search`, `train` or `measure` wrote.
        output: the page; `report.html` in that folder if not given. An old one is replaced in one
            step.

    Returns:
        The page's path.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it is a file, holds nothing that a page tells of, or `output` is a folder.

    Example:
        ```python
        page = build_report("runs/sql")
        webbrowser.open(page.resolve().as_uri())
        ```
    """
    place = Path(run_dir) / PAGE if output is None else Path(output)
    if place.is_dir():
        raise ValueError(f"the page must be a file, {place} is a folder: name a file in it")
    write_page(make_page(run_dir, place), place)
    return place


def make_page(run_dir: str | Path, output: str | Path | None = None) -> ReportPage:
    """Return the page of a folder without writing it; see `build_report`.

    Args:
        run_dir: the folder.
        output: where the page will lie, which is not looked at.
    """
    folder = Path(run_dir)
    ignored = [folder / PAGE] if output is None else [folder / PAGE, Path(output)]
    files = look_through(folder, ignored)
    if not any(found.kind is not Kind.other for found in files):
        raise ValueError(
            f"{folder} holds nothing that a page could tell of"
            + (", it is empty" if not files else f" among {len(files):,} files")
            + ": name a folder that `vtrim run`, `search -o`, `train -o` or `measure -o` wrote"
        )
    plots = _can_draw()
    told: list[tuple[tuple[Found, ...], Section]] = []
    of_run = tuple(found for found in files if found.kind is Kind.run)
    if of_run:
        names = tuple(found.name for found in of_run)
        told.append((of_run, _made(lambda: run_section(of_run), "The run", names)))
    for found in sorted(files, key=_place):
        if found.kind in _MAKERS and not (found.kind is Kind.drawn and plots):
            make = partial(_MAKERS[found.kind], found, f"p{len(told)}", plots=plots)
            title = f"{found.kind.value.capitalize()}: {shown(found.name, 120)}"
            told.append(((found,), _made(make, title, (found.name,))))
    told += [((), section) for section in _missing(files)]
    sections = tuple(section for _, section in told)
    where = {found.name: section.title for founds, section in told for found in founds}
    html = _rendered(
        name=folder.resolve().name or str(folder),
        sections=sections,
        remark="" if plots else _NO_PLOTS,
        absent=_absent(files),
        files=_listed(files, where),
    )
    return ReportPage(html, sections)


def write_page(page: ReportPage, output: Path) -> None:
    """Write a page in one step; an interrupted call leaves the old one."""
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, page.html.encode("utf-8", "backslashreplace"))


def _place(found: Found) -> tuple[Any, ...]:
    """Return where a file's section stands: one draft after the other, benchmarks by folder."""
    parts = found.name.split("/")
    draft = parts[1] if parts[0] == "domains" and len(parts) > 2 else ""
    kinds = list(_MAKERS)
    order = kinds.index(found.kind) if found.kind in _MAKERS else len(kinds)
    beside = kinds.index(Kind.words)  # texts, pictures and figures of one folder stay together
    return draft, min(order, beside), found.scope if order >= beside else "", order, found.name


def _made(make: Callable[[], Section], title: str, names: tuple[str, ...]) -> Section:
    """Make a section, or one that says why its files cannot be shown."""
    try:
        return make()
    except DAMAGED as error:
        return Section(title, names, problem=damage(error))


def _missing(files: Sequence[Found]) -> list[Section]:
    """Return a section for each file that a run should have left and did not."""
    try:
        missing = missing_parts(files)
    except DAMAGED as error:
        return [Section("Missing parts", (), problem=damage(error, "The list of steps"))]
    return [Section(f"Missing: {name}", (), problem=why) for name, why in missing]


def _absent(files: Sequence[Found]) -> Grid:
    kinds = {found.kind for found in files}
    rows = [
        (
            text(what),
            text(f"no {' and no '.join(k.value.removeprefix('a ') for k in of)} is here"),
            code(how),
        )
        for of, what, how in _ABSENT
        if not kinds.intersection(of)
    ]
    return grid("Parts that no file tells of", ["part", "why", "made by"], rows)


def _listed(files: Sequence[Found], where: dict[str, str]) -> Grid:
    rows = []
    for found in files:
        shown_in = where.get(found.name)
        if found.kind is Kind.drawn and shown_in is None:
            shown_in = "drawn anew from its figures"
        known = "" if found.kind is Kind.other else found.kind.value
        rows.append((code(found.name), text(known), text(shown_in or f"not shown: {found.why}")))
    # What is shown comes first: of a long list, that part is not cut.
    rows.sort(key=lambda row: row[2].text.startswith("not shown"))
    title = f"{len(files):,} files, {len(where):,} of them shown"
    return grid(title, ["file", "what it is", "where"], rows)


def _can_draw() -> bool:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def _rendered(**values: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    version = str(getattr(sys.modules[__package__ or __name__], "__version__", ""))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    # The only HTML that is not escaped: drawings of our own, and Markdown that was escaped whole.
    environment.filters["own_svg"] = Markup
    environment.filters["own_html"] = Markup
    environment.filters["runs"] = _runs
    return environment.get_template(_TEMPLATE).render(version=version, **values)


def _printable(value: Any) -> Any:
    """Return a text without what no page may hold, should any have come this far."""
    if hasattr(value, "__html__") or not isinstance(value, str):
        return value
    return "\n".join(shown(line, 1 << 24) for line in value.split("\n"))


def _runs(blocks: Iterable[Block]) -> list[tuple[str, list[Block]]]:
    """Return blocks in runs of one kind, so that plots stand side by side."""
    return [(kind, list(run)) for kind, run in groupby(blocks, key=lambda block: block.kind)]
