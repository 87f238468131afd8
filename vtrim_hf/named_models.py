"""A model by its name: its parts, loaded when first asked for, and what tells it apart."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

from .embedded_models import EMBEDDED, load_model, load_tokenizer, resolve_model

# What `from_pretrained` may read: weights, configs, tokenizer files, templates, code.
_READ = (".json", ".safetensors", ".bin", ".jinja", ".model", ".txt", ".tiktoken", ".py")


class NamedModel:
    """A model by embedded name, Hub id or folder, of which nothing is loaded yet.

    Args:
        name: see `embedded_models.resolve_model`.
        revision: branch, tag or commit of a Hub id.
        is_folder: whether the name is a folder's; None looks for one now. Either way it is decided
            once, and a folder of that name that turns up later changes nothing.

    Every part raises OSError, naming what could not be loaded, which Transformers does not always
    do.

    Example:
        >>> target = NamedModel("smollm2")
        >>> target.config.vocab_size  # doctest: +SKIP
        49152
    """

    def __init__(
        self, name: str, *, revision: str | None = None, is_folder: bool | None = None
    ) -> None:
        self.name = name
        self.revision = revision
        found = name not in EMBEDDED and Path(name).is_dir()
        self._is_folder = found if is_folder is None else is_folder
        self._loaded: tuple[str, Any] | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def _pinned(self) -> dict[str, Any]:
        return {} if self.revision is None else {"revision": self.revision}

    def _resolved(self) -> str:
        """Return what `from_pretrained` understands, which takes any folder of a Hub id's name."""
        if not self._is_folder and self.name not in EMBEDDED and Path(self.name).exists():
            raise OSError(
                f"{self.name} is a Hub id, and {Path.cwd()} holds a file or folder of that name, "
                "which would be read instead: start this in another folder"
            )
        return resolve_model(self.name)

    @cached_property
    def config(self) -> Any:
        """The model's config."""
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(self._resolved(), **self._pinned)
        except OSError as error:
            raise self._failed("config", error) from error

    @cached_property
    def generation_config(self) -> Any:
        """The model's generation config."""
        from transformers import GenerationConfig

        try:
            return GenerationConfig.from_pretrained(self._resolved(), **self._pinned)
        except OSError as error:
            raise self._failed("generation_config", error) from error

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        try:
            return load_tokenizer(self._resolved(), **self._pinned)
        except OSError as error:
            raise self._failed("tokenizer", error) from error

    @property
    def vocab_size(self) -> int:
        """Its (padded) width, V."""
        return int(self.config.get_text_config().vocab_size)

    def model(self, dtype: str = "float32") -> Any:
        """Return the model itself; the one in the dtype asked for last is kept.

        Args:
            dtype: of the weights, by name; "auto" takes the saved one.
        """
        if self._loaded is None or self._loaded[0] != dtype:
            self.release()
            try:
                self._loaded = dtype, load_model(self._resolved(), dtype=dtype, **self._pinned)
            except OSError as error:
                raise self._failed("model", error) from error
        return self._loaded[1]

    def release(self) -> None:
        """Let go of the weights; they are loaded again when they are next asked for."""
        self._loaded = None

    def pin(self) -> None:
        """Stay with the commit that a Hub id has now, whatever is pushed to it meanwhile."""
        self.revision = self.commit or self.revision

    @cached_property
    def commit(self) -> str | None:
        """The commit of a Hub id; None for a folder or an embedded model."""
        if self.name in EMBEDDED or self._is_folder:
            return None
        from huggingface_hub import hf_hub_download

        try:
            # The snapshot's folder is called by its commit, online or from the cache.
            found = hf_hub_download(self._resolved(), "config.json", revision=self.revision)
        except (OSError, ValueError) as error:
            raise self._failed("config", error) from error
        return Path(found).parent.name

    @property
    def hub_id(self) -> str | None:
        """Its Hub id, which an embedded model has, too; None for a folder."""
        if self.name in EMBEDDED:
            return EMBEDDED[self.name].hub_id
        return None if self._is_folder else self.name

    @cached_property
    def identity(self) -> str:
        """A text that is the same for the same content only.

        It names the commit of a Hub id, the hash of an embedded model's weights, or the hash of a
        folder's config, weight and tokenizer files.
        """
        if self.name in EMBEDDED:
            return f"embedded:{self.name}@{EMBEDDED[self.name].sha256}"
        if self.commit is not None:
            return f"hub:{self.name}@{self.commit}"
        return f"folder:{folder_hash(Path(self.name))}"

    def _failed(self, part: str, error: Exception) -> OSError:
        return OSError(f"cannot load the {part} of {self.name}: {error}")


def folder_hash(folder: Path) -> str:
    """Return the sha256 (hex) over the files of a model's folder that loading it may read."""
    templates = folder.glob("additional_chat_templates/*.jinja")
    files = {path for path in folder.iterdir() if path.suffix in _READ and path.is_file()}
    digest = hashlib.sha256()
    for path in sorted(files.union(templates)):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()}={content}\n".encode())
    return digest.hexdigest()
