"""Build the API reference from the docstrings, and refuse to leave a public name out.

    make docs        or: python docs/build_reference.py [--output build/docs]

pdoc writes one page a module. What is public is what `vtrim_hf.__all__` names, and beside it the
modules of `MODULES`, which are used by their own names.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import warnings
from pathlib import Path
from typing import Any

import pdoc
import pdoc.render

MODULES = (
    "vtrim_hf",
    "vtrim_hf.draft_making",
    "vtrim_hf.draft_on_hub",
    "vtrim_hf.recipe",
    "vtrim_hf.recipe_runner",
    "vtrim_hf.coverage_metadata",
    "vtrim_hf.embedded_models",
    "vtrim_hf.local_hub",
    "vtrim_hf.metrics",
)


def public_names(module: Any) -> list[str]:
    """Return what a module says is public, or else what it defines without an underscore."""
    said = getattr(module, "__all__", None)
    if said is not None:
        return [name for name in said if not name.startswith("__")]
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]


def members_of(owner: Any) -> list[str]:
    """Return the public functions and properties that a class defines itself."""
    kinds = (property, classmethod, staticmethod)
    return [
        name
        for name, member in vars(owner).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, kinds))
    ]


def undocumented() -> list[str]:
    """Return the public names that have no docstring of their own."""
    missing = []
    for module in map(importlib.import_module, MODULES):
        for name in public_names(module):
            thing = getattr(module, name)
            if inspect.isclass(thing):
                # Inherited text would be the parent's, and say nothing of this one.
                if not vars(thing).get("__doc__"):
                    missing.append(f"{module.__name__}.{name}")
                missing += [
                    f"{module.__name__}.{name}.{member}"
                    for member in members_of(thing)
                    if not inspect.getdoc(vars(thing)[member])
                ]
            elif callable(thing) and not inspect.getdoc(thing):
                missing.append(f"{module.__name__}.{name}")
    return missing


def not_on_page(output: Path) -> list[str]:
    """Return the public names that have no place on the pages in `output`."""
    missing = []
    for module in map(importlib.import_module, MODULES):
        page = (output / Path(*module.__name__.split("."))).with_suffix(".html").read_text("utf-8")
        names = public_names(module)
        for owner in [name for name in names if inspect.isclass(getattr(module, name))]:
            names += [f"{owner}.{member}" for member in members_of(getattr(module, owner))]
        missing += [f"{module.__name__}: {name}" for name in names if f'id="{name}"' not in page]
    return missing


def build(output: Path) -> None:
    """Write the pages.

    Raises:
        SystemExit: naming the public names without a docstring, or without a place on a page.
    """
    if missing := undocumented():
        raise SystemExit("public names without a docstring:\n  " + "\n  ".join(missing))
    pdoc.render.configure(docformat="google", show_source=False)
    with warnings.catch_warnings():
        # Annotations of Transformers' own classes, which pdoc cannot resolve.
        warnings.filterwarnings("ignore", message="Error parsing type annotation")
        # Its own modules only: submodules are how the package is built, not how it is used.
        others = "|".join(name.partition(".")[2] for name in MODULES[1:])
        hidden = (f"!vtrim_hf\\.(?!(?:{others})$)", "!vtrim_hf\\.local_hub\\.")
        pdoc.pdoc(*MODULES, *hidden, output_directory=output)
    if missing := not_on_page(output):
        raise SystemExit("public names without a place:\n  " + "\n  ".join(missing))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/docs"))
    chosen = parser.parse_args().output
    build(chosen)
    print(f"the reference is {chosen / 'index.html'}")
