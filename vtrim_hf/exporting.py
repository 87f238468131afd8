"""`export_draft`: a draft as a folder that serving engines load.

What the files say is the business of the format's own module, `eagle_format.py`; here a draft is
loaded, and the folder is written whole or not at all.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .compatibility import unwrap
from .eagle_format import OWN_KEY, check_eagle, eagle_config_json, eagle_tensors, said
from .modeling_trimmed_draft import TrimmedDraftForCausalLM

FORMATS = ("eagle",)
CONFIG_JSON = "config.json"
WEIGHTS = "model.safetensors"
DTYPES = ("float32", "bfloat16", "float16")


def export_draft(
    draft: Any,
    format: str,
    folder: str | os.PathLike[str],
    *,
    dtype: torch.dtype | str | None = None,
    target_name: str | None = None,
) -> Path:
    """Write a draft in the files of serving engines.

    `"eagle"` is the EAGLE-3 layout that vLLM (`method: "eagle3"`) and SGLang
    (`--speculative-algorithm EAGLE3`) load: `model.safetensors` with one layer, a head of k rows
    and, unless k = V, the tables `d2t` (row i stands for the target's token i + d2t[i]) and `t2d`
    (whether a token of the target has a row); `config.json` with the sizes, the rotary settings
    and the target's layers. The embeddings are the target's own in every engine and not written.

    The folder is there whole or not at all. An earlier export is replaced; a kill in the moment
    between its going and the new one's coming leaves both, as `old` and `new`, in a hidden folder
    beside it, named after it.

    Args:
        draft: a draft with an EAGLE-3 body, or the folder or Hub id of one.
        format: `"eagle"`.
        folder: a new or empty folder, or one of an earlier export.
        dtype: of the weights, float32, bfloat16 or float16; the draft's own if not given.
        target_name: the target's Hub id, where the draft does not know it.

    Returns:
        The folder.

    Raises:
        TypeError: if `draft` is no draft.
        ValueError: for an unknown format or dtype, a folder with other files in it, or a draft
            with something that no engine reads: a standalone body, biases, the state behind the
            last layer, adapters, quantised or unloaded weights, numbers that are not finite.

    Example:
        >>> export_draft(draft, "eagle", "draft-eagle")  # doctest: +SKIP
    """
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    place = Path(folder)
    _check_place(place.resolve())
    draft = _loaded(draft)
    check_eagle(draft)
    kind = _dtype(dtype, draft)
    tensors = eagle_tensors(draft, kind)
    config = eagle_config_json(draft, kind, target_name)
    _write_whole(place.resolve(), tensors, config)
    return place


def _loaded(draft: Any) -> Any:
    if isinstance(draft, str | Path):
        return TrimmedDraftForCausalLM.from_pretrained(draft)
    # Drafts that brought their own code along are of another class of that name.
    draft = unwrap(draft)
    if getattr(getattr(draft, "config", None), "model_type", "") != "trimmed_draft":
        raise TypeError(
            "export_draft takes a TrimmedDraftForCausalLM, or the folder or Hub id of one, got "
            f"{type(draft).__name__}: make one with TrimmedDraftForCausalLM.for_target"
        )
    return draft


def _dtype(asked: torch.dtype | str | None, draft: Any) -> torch.dtype:
    asked = draft.body.lm_head.weight.dtype if asked is None else asked
    name = asked if isinstance(asked, str) else said(asked)
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {name}: pass dtype=...")
    found: torch.dtype = getattr(torch, name)
    return found


def _check_place(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier export."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ValueError(f"an export is a folder, {folder} is a file: name another place")
    if folder == Path.cwd():
        raise ValueError(
            f"an export takes the place of its folder, and {folder} is the current one: name "
            "another folder, inside or beside it"
        )
    others = sorted({file.name for file in folder.iterdir()} - {CONFIG_JSON, WEIGHTS})
    if not others and any(folder.iterdir()) and not _is_export(folder / CONFIG_JSON):
        others = [CONFIG_JSON if (folder / CONFIG_JSON).exists() else WEIGHTS]
    if others:
        raise ValueError(
            f"an export replaces nothing but an earlier export, and {folder} holds {others[0]}: "
            "name a new folder, or empty this one"
        )


def _is_export(config: Path) -> bool:
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
        return "export" in found[OWN_KEY]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write_whole(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    """Write beside the folder, then let both change places."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        new, old = Path(temporary) / "new", Path(temporary) / "old"
        new.mkdir()
        save_file(tensors, new / WEIGHTS, metadata={"format": "pt"})
        (new / WEIGHTS).chmod(0o644)
        text = json.dumps(config, indent=2, allow_nan=False) + "\n"
        (new / CONFIG_JSON).write_text(text, encoding="utf-8")
        if folder.exists():
            folder.rename(old)
        try:
            new.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise
