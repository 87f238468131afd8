"""The step that makes the `DecodingModel`: by a decode report, or by timing the target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .decode_report import DecodeReport
from .decoding_model import DecodingModel
from .measuring_step import REPORT_JSON
from .named_models import NamedModel


def make_decoding(
    target: NamedModel, *, report: Path | None = None, acceptance: Sequence[float] = ()
) -> DecodingModel:
    """Tell what a round of drafting gives and takes, for the objective throughput.

    Args:
        target: the model that will verify; timed here if there is no report.
        report: a decode report of a draft of the same kind, or the folder that it lies in.
        acceptance: by position, how often a draft token is accepted if all before it were.

    Raises:
        ValueError: if the file is no report, or as `DecodingModel` documents.
    """
    if report is not None:
        file = report / REPORT_JSON if report.is_dir() else report
        try:
            read = DecodeReport.load(file)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file} is no decode report: {error!r}") from error
        return DecodingModel.from_report(read)
    return DecodingModel.measured(target.model("auto"), acceptance=acceptance)
