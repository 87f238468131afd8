"""How facts are said on a card: numbers, shares, machines, tokens, the course of a training."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any
from unicodedata import combining

MISSED_OF = {
    "heldout": "the held-out conversations",
    "search": "the counted conversations",
    "decoding": "the target's answers while measuring",
}

# They pass for printable, and are shown as nothing, or as a blank.
_UNSEEN = frozenset(
    [*"\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"]
    + [chr(code) for code in (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10))]
    + [chr(code) for code in range(0xE0100, 0xE01F0)]
)


def coverage_rows(coverage: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the table of coverage: one a domain, and all together."""
    rows = [{"name": name, **known} for name, known in coverage.get("domains", {}).items()]
    whole = {name: coverage[name] for name in ("search", "heldout") if name in coverage}
    return [*rows, {"name": "all", **whole}] if whole and len(rows) != 1 else rows


def machine_words(facts: Mapping[str, Any]) -> str:
    """Say what was measured on."""
    said = [str(facts[name]) for name in ("gpu", "cpu") if name in facts]
    for name in ("device", "threads", "system"):
        if name in facts:
            said.append(f"{name} {facts[name]}")
    said += [f"{name} {version}" for name, version in sorted(facts.get("versions", {}).items())]
    return ", ".join(said) or "an unknown machine"


def measure_command(
    repo_id: str, facts: Mapping[str, Any], revision: str | None = None
) -> str | None:
    """Return the command that measures again as it was measured; None if none does.

    Args:
        repo_id: of the draft.
        facts: of the draft.
        revision: its branch, if that is not main.
    """
    decoding = facts.get("decoding", {})
    settings = decoding.get("settings", {})
    if not decoding or settings.get("do_sample"):
        return None
    said = ["vtrim measure", facts["target"].get("id", "TARGET"), repo_id, "PROMPTS"]
    for option, value in (
        ("--revision", None if revision is None else shlex.quote(revision)),
        ("--limit", decoding.get("prompts")),
        ("--max-new-tokens", settings.get("max_new_tokens")),
        ("--draft-length", decoding.get("num_assistant_tokens")),
        ("--threshold", decoding.get("assistant_confidence_threshold")),
        ("--dtype", decoding.get("dtype")),
    ):
        if value is not None:
            said.append(f"{option} {value}")
    return " ".join(said)


def curve_words(training: Mapping[str, Any]) -> str:
    """Say how the acceptance length rose: at most four evaluations, and the one that was kept."""
    points = training.get("curve", [])
    if len(points) < 2:
        return ""
    end = len(points) - 1
    best = [at for at, one in enumerate(points) if one["step"] == training.get("best_step")]
    shown = sorted({0, end // 3, 2 * end // 3, end, *best[-1:]})
    said = [
        f"{points[at]['acceptance_length']:.2f} after {points[at]['tokens']:,} tokens"
        for at in shown
    ]
    text = f"On the held-out conversations it was {', '.join(said)}"
    if best:
        if training["best_step"] == 0:
            text += "; the draft that it started from was kept, no checkpoint was better"
        else:
            text += f"; the checkpoint of step {training['best_step']:,} was kept"
            text += ", the last one" if best[-1] == end else ", the best one"
    return f"{text}."


def setting_rows(training: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how it was trained as rows of a table; what is not known has none."""
    settings: Mapping[str, Any] = training.get("settings", {})
    rate = settings.get("learning_rate")
    said = {
        "trained on from": _start_words(training.get("start", {})),
        "text read": _read(training),
        "data": _data_words(training.get("data", {}).get("train")),
        "held out": _data_words(training.get("data", {}).get("heldout")),
        "time": _time_words(training),
        "tokens drafted in a row": settings.get("unroll_steps"),
        "learning rate": rate
        and ", ".join(map(str, filter(None, [rate, settings.get("lr_scheduler_type")]))),
        "sequences a step": _batch(settings),
        "computed in": {True: "bfloat16", False: "float32"}.get(settings.get("bf16")),  # type: ignore[arg-type]
        "positions whose token has no row": _masked_words(training),
        "confidence calibrated on": _calibration_words(training.get("calibration", {})),
    }
    return [(name, str(value)) for name, value in said.items() if value]


def _start_words(start: Mapping[str, Any]) -> str:
    known = str(start.get("hash", ""))[:12]
    if "id" in start:
        return f"{start['id']}, commit {known}" if known else str(start["id"])
    return f"a draft of the hash {known}" if known else ""


def _read(training: Mapping[str, Any]) -> str:
    said = []
    if "tokens" in training:
        said.append(f"{training['tokens']:,} tokens")
    if "steps" in training:
        said.append(f"{training['steps']:,} steps")
    if "epochs" in training:
        said.append(f"{training['epochs']:.1f} epochs")
    return ", ".join(said)


def _data_words(data: Any) -> str:
    if not isinstance(data, Mapping) or "conversations" not in data:
        return ""
    text = f"{data['conversations']:,} conversations"
    if "tokens" in data:
        text += f", {data['tokens']:,} tokens"
    if "assistant_tokens" in data:
        text += f", {data['assistant_tokens']:,} of them the assistant's"
    return text


def _time_words(training: Mapping[str, Any]) -> str:
    if "minutes" not in training:
        return ""
    by_part = training.get("minutes_by_part", {})
    parts = ", ".join(f"{name} {spent:.1f}" for name, spent in by_part.items())
    return f"{training['minutes']:.1f} minutes" + (f": {parts}" if parts else "")


def _batch(settings: Mapping[str, Any]) -> int | None:
    each, summed = (
        settings.get(name, 1)
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
    )
    known = "per_device_train_batch_size" in settings and type(each) is type(summed) is int
    return each * summed if known else None


def _masked_words(training: Mapping[str, Any]) -> str:
    said = [
        f"{percent(training[name], 2)} {where}"
        for name, where in (("masked_share", "in training"), ("heldout_masked_share", "held out"))
        if name in training
    ]
    return ", ".join(said)


def _calibration_words(found: Mapping[str, Any]) -> str:
    if "prompts" not in found:
        return ""
    text = f"{found['prompts']:,} held-out prompts"
    if "proposals" in found:
        text += f", {found['proposals']:,} proposals"
    return text


def percent(value: Any, places: int = 1) -> str:
    """Say a share."""
    return f"{100 * value:.{places}f} %"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else ""


def _short(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else ""


def _covered(part: Any) -> str:
    if not isinstance(part, Mapping):
        return ""
    text = percent(part["share"], 2)
    if "interval" in part:
        low, high = part["interval"]
        text += f" ({100 * low:.2f} to {100 * high:.2f})"
    return text


def _counted(part: Any) -> str:
    if not isinstance(part, Mapping) or "tokens" not in part:
        return ""
    text = _number(part["tokens"])
    if "conversations" in part:
        text += f" in {_number(part['conversations'])} conversations"
    return text


def _speedup(spread: Mapping[str, float]) -> str:
    text = f"{spread['median']:.2f}"
    return f"{text} ({spread['low']:.2f} to {spread['high']:.2f})" if "low" in spread else text


def is_seen(sign: str) -> bool:
    """Tell whether a sign is one that a reader sees, and that leaves others where they are."""
    return sign.isprintable() and sign not in _UNSEEN


def visible(text: str) -> str:
    r"""Return a text with an escape, as Python writes it, for every sign that is not seen.

    Example:
        >>> visible("a\u202eb\u200b")
        'a\\u202eb\\u200b'
    """
    shown = "".join(sign if is_seen(sign) else _escape(sign) for sign in text)
    # An accent of nothing would stand on whatever comes before.
    return _escape(shown[0]) + shown[1:] if shown and combining(shown[0]) else shown


def harmless(text: str, longest: int = 300) -> str:
    """Return the beginning of a text that strangers wrote, for a message: every sign is seen."""
    return visible(text[:longest]) + ("..." if len(text) > longest else "")


def _escape(sign: str) -> str:
    code = ord(sign)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cell(value: Any) -> str:
    """Text that is neither Markdown nor HTML, wherever it stands in a line."""
    text = visible(" ".join(str(value).split()))
    return re.sub(r"([\\`*_{}\[\]<>#|~$!&])", r"\\\1", text)


def python_text(text: str) -> str:
    """Return a text as Python code writes it, all that is not seen escaped."""
    return visible(json.dumps(text, ensure_ascii=False))


def code(text: str) -> str:
    """A text as code, line breaks and all that is not seen escaped.

    A bar is escaped as the tables of Markdown have it, within code, too. Of no text there is no
    code: two backticks would only begin some.
    """
    if not text:
        return ""
    shown = visible(json.dumps(text, ensure_ascii=False)[1:-1]).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    pad = " " if shown.startswith(("`", " ")) or shown.endswith(("`", " ")) else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


FILTERS = {
    "percent": percent,
    "number": _number,
    "short": _short,
    "covered": _covered,
    "counted": _counted,
    "speedup": _speedup,
    "cell": cell,
    "token": code,
    "python": python_text,
}
"""What the template calls them."""
