"""`vtrim export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from .cli_shared import AsJson, Debug, Dtype, answers_mistakes, show


@answers_mistakes
def export(
    draft: Annotated[str, typer.Argument(help="Folder or Hub id of a draft for one target.")],
    folder: Annotated[
        Path, typer.Argument(help="Folder to write; an earlier export is replaced.")
    ],
    format_: Annotated[
        str, typer.Option("--format", help="`eagle`: EAGLE-3, for vLLM and SGLang.")
    ] = "eagle",
    dtype: Annotated[
        Dtype | None, typer.Option(help="Of the weights; the draft's own if not given.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Hub id of the target, where the draft does not know it.")
    ] = None,
    json_: AsJson = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Write a draft in the files of serving engines.

    Example: `vtrim export me/my-eagle-draft draft-eagle --format eagle`
    """
    from .eagle_format import OWN_KEY
    from .exporting import CONFIG_JSON, export_draft

    written = export_draft(
        draft,
        format_,
        folder,
        dtype=None if dtype is None else str(dtype),
        target_name=target,
    )
    config: dict[str, Any] = json.loads((written / CONFIG_JSON).read_text(encoding="utf-8"))
    own = config[OWN_KEY]
    facts: dict[str, Any] = {
        "output": str(written),
        "format": format_,
        "k": config["draft_vocab_size"],
        "vocab_size": config["vocab_size"],
        "target": own["target"],
        "layers": own["target_hidden_states"],
        "dtype": config["dtype"],
        "fingerprint": own["vocabulary_fingerprint"],
    }
    said = {**facts, "layers": ", ".join(map(str, facts["layers"]))}
    show(facts, [{"": name, "value": value} for name, value in said.items()], json_)
