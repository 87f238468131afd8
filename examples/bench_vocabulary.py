"""Which vocabulary each domain gets, what it covers, and how other ways of choosing one compare.

    python examples/bench_vocabulary.py --data domains --target smollm2

`--data` is a folder of domains as `build_domains.py` makes it: DOMAIN/train.jsonl, test.jsonl
where there is one, and ood/*.jsonl. For every domain, on the tokens that the assistant says:

- the exact k* and that of the paper's search (TPE) for four weights and four least coverages, with
  coverage on the search part, on held-out conversations of the same file, and on test.jsonl;
- at the k* of the paper's setting (weight 0.5, no least coverage): what the vocabularies that
  others would choose cover on the same held-out conversations;
- the coverage of each domain's vocabulary on every other domain and on the ood sets.

`--target` may be given several times: smollm2, a folder or a Hub id; of a folder with a tokenizer
only, `--layer-of` names the model whose config says how large a draft's layer is. `llama3` is the
tokenizer of the paper's target, read out of the package llama-models (pip install --no-deps
llama-models==0.3.0; Meta's licence), with the layer sizes of Llama-3.1-8B.

One target and the nine domains of `build_domains.py` take about 2 minutes of one core. The same
command goes on where it was interrupted. OUTPUT/<target>/ then holds report.md, figures.json and
heat_map.png.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import importlib.metadata
import io
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vtrim_hf import LatencyModel, TokenCounts, required_token_ids, search_vocabulary
from vtrim_hf.batch_counting import CountRules
from vtrim_hf.chat_data import open_chat_data
from vtrim_hf.chat_messages import MalformedRow
from vtrim_hf.chat_rows import read_row
from vtrim_hf.embedded_models import cache_folder
from vtrim_hf.kept_rows import KeptRows
from vtrim_hf.named_models import NamedModel
from vtrim_hf.vocabulary import rank_ids, tokenizer_fingerprint, write_atomically

ALPHAS = (0.3, 0.5, 0.7, 0.9)
FLOORS = (0.0, 0.95, 0.97, 0.99)
PAPER_ALPHA, PAPER_FLOOR = 0.5, 0.0
USUAL = 32_000
OOD = "ood"
GENERAL = "general"
ENCODED_AT_ONCE = 256

PAPER = {"general": 13_264, "ner": 6_521, "function_calling": 4_380}
PAPER_WIDTH, PAPER_OOD = 128_256, 0.971


# --- targets ---------------------------------------------------------------------------------


class Target:
    """A target's tokenizer, and what a draft for it costs.

    Args:
        name: `llama3`, or what `NamedModel` takes.
        layer_of: the model whose config counts, where the target has none.
    """

    def __init__(self, name: str, layer_of: str | None = None) -> None:
        self.name = name
        self.model = NamedModel(str(llama3_folder()) if name == "llama3" else name)
        self.layer_of = layer_of

    @property
    def slug(self) -> str:
        """A short name for a folder."""
        return re.sub(r"[^a-z0-9._-]+", "-", Path(self.name).name.lower())

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return self.model.tokenizer

    @cached_property
    def latency(self) -> LatencyModel:
        """The operations of one step of an EAGLE-3 draft, as in the paper."""
        source = NamedModel(self.layer_of) if self.layer_of else self.model
        try:
            config = source.config
        except (OSError, ValueError) as error:
            raise SystemExit(
                f"{source} has no config that says how large a draft's layer is: name a model "
                f"that has one, --layer-of MODEL ({str(error).splitlines()[0]})"
            ) from error
        width = len(self.tokenizer) if self.layer_of else self.model.vocab_size
        return LatencyModel.eagle3(config, vocab_size=width)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.latency.vocab_size

    @cached_property
    def required(self) -> Any:
        """Ids that every vocabulary keeps."""
        try:
            generation = self.model.generation_config
        except OSError:  # a folder with a tokenizer only has none
            generation = None
        return required_token_ids(self.tokenizer, generation, vocab_size=self.vocab_size)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What a result depends on, and a reader wants to know."""
        return {
            "target": self.name,
            "layer_of": self.layer_of,
            "vocab_size": self.vocab_size,
            "tokenizer_hash": tokenizer_fingerprint(self.tokenizer),
            "template_hash": hashlib.sha256(
                str(self.tokenizer.chat_template).encode()
            ).hexdigest(),
            "latency": self.latency.to_dict(),
            "required": len(self.required),
        }


LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPECIAL = {
    0: "<|begin_of_text|>",
    1: "<|end_of_text|>",
    4: "<|finetune_right_pad_id|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    8: "<|eom_id|>",
    9: "<|eot_id|>",
    10: "<|python_tag|>",
}
LLAMA3_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}
{{- message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""


def llama3_folder() -> Path:
    """Return a folder with Llama 3's tokenizer and the config of Llama-3.1-8B, made once.

    Raises:
        SystemExit: if the package llama-models is not installed.
    """
    from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

    try:
        package = importlib.metadata.distribution("llama-models")
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(
            "the target llama3 is read out of the package llama-models, which is not installed: "
            "pip install --no-deps llama-models==0.3.0"
        ) from None
    data = Path(str(package.locate_file("llama_models/llama3/tokenizer.model"))).read_bytes()
    folder = cache_folder() / "models" / f"llama3-{hashlib.sha256(data).hexdigest()[:12]}-1"
    if (folder / "config.json").is_file():  # written last
        return folder
    lines = (line.split() for line in data.splitlines() if line)
    ranks = {base64.b64decode(piece): int(rank) for piece, rank in lines}
    names = [
        LLAMA3_SPECIAL.get(number, f"<|reserved_special_token_{number}|>") for number in range(256)
    ]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_pairs(ranks, LLAMA3_SPLIT, names),
        bos_token=names[0],
        eos_token=names[9],
        pad_token=names[4],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = LLAMA3_TEMPLATE
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    ends = [len(ranks) + number for number in (1, 8, 9)]
    GenerationConfig(bos_token_id=len(ranks), eos_token_id=ends).save_pretrained(folder)
    LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        bos_token_id=len(ranks),
        eos_token_id=ends,
    ).save_pretrained(folder)
    return folder


def byte_pairs(ranks: Mapping[bytes, int], split: str, special: Sequence[str]) -> Any:
    """Make a byte-level BPE tokenizer of pieces by their rank, which is the form of tiktoken.

    A piece may come of every pair of pieces that makes it; the earlier piece is merged first.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    letters = {byte: chr(byte) for byte in printed}
    letters |= {byte: chr(256 + number) for number, byte in enumerate(others)}

    def spelt(piece: bytes) -> str:
        return "".join(letters[byte] for byte in piece)

    merges = []
    for piece in sorted(ranks, key=ranks.__getitem__):
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = [(left, right) for left, right in pairs if left in ranks and right in ranks]
        pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(spelt(left), spelt(right)) for left, right in pairs]
    vocabulary = {spelt(piece): rank for piece, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    return tokenizer


# --- counting --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Domain:
    """A folder of conversations."""

    name: str
    train: Path
    test: Path | None

    @property
    def identity(self) -> list[str | None]:
        """What tells its content apart."""
        return [None if p is None else identity_of(p) for p in (self.train, self.test)]


def identity_of(path: Path) -> str:
    """Return what tells a file's content apart."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def domains_in(data: Path, only: Sequence[str] | None = None) -> list[Domain]:
    """List the domains of a folder.

    Raises:
        SystemExit: if there is none, or one that was asked for is not there.
    """
    found = [
        Domain(
            train.parent.name,
            train,
            test if (test := train.with_name("test.jsonl")).is_file() else None,
        )
        for train in sorted(data.glob("*/train.jsonl"))
    ]
    names = [domain.name for domain in found]
    if not found:
        raise SystemExit(
            f"{data} holds no DOMAIN/train.jsonl: examples/build_domains.py makes such a folder"
        )
    if unknown := [name for name in only or () if name not in names]:
        raise SystemExit(f"{data} holds the domains {', '.join(names)}, and no {unknown[0]!r}")
    return [domain for domain in found if not only or domain.name in only]


def assistant_counts(path: Path, name: str, target: Target, heldout: float) -> TokenCounts:
    """Count what the assistant says; kept counts are found again."""
    return TokenCounts.from_dataset(
        str(path),
        target.tokenizer,
        vocab_size=target.vocab_size,
        heldout=heldout,
        domain=name,
        progress=False,
    )


@dataclass(frozen=True, eq=False)
class TextCounts:
    """What others count, of the same conversations.

    Attributes:
        conversation: int64 [V], every token of the conversations, prompts and template included.
        raw: int64 [V], the texts alone, without template and roles.
    """

    conversation: np.ndarray
    raw: np.ndarray


def text_counts(path: Path, target: Target, heldout: float) -> TextCounts:
    """Count whole conversations of the search part; kept counts are found again."""
    facts = [
        identity_of(path),
        heldout,
        target.facts["tokenizer_hash"],
        target.facts["template_hash"],
    ]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    kept = cache_folder() / "counts" / f"conversations-{digest}.npz"
    if kept.is_file():
        with np.load(kept) as arrays:
            return TextCounts(arrays["conversation"], arrays["raw"])
    backend = target.tokenizer.backend_tokenizer
    sums = np.zeros((2, target.vocab_size), dtype=np.int64)
    for batch in batches(search_texts(path, target, heldout), ENCODED_AT_ONCE):
        for place, texts in enumerate(zip(*batch, strict=True)):
            encoded = backend.encode_batch_fast(list(texts), add_special_tokens=False)
            ids = np.concatenate([np.asarray(one.ids, dtype=np.int64) for one in encoded])
            sums[place] += np.bincount(ids, minlength=target.vocab_size)
    stream = io.BytesIO()
    np.savez(stream, conversation=sums[0], raw=sums[1])
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(kept, stream.getvalue())
    return TextCounts(sums[0], sums[1])


def search_texts(path: Path, target: Target, heldout: float) -> Iterator[tuple[str, str]]:
    """Give each conversation of the search part: as the template renders it, and its texts."""
    rules = CountRules(vocab_size=target.vocab_size, heldout=heldout)
    for row in open_chat_data(str(path)):
        try:
            conversation = read_row(row.row)
        except MalformedRow:
            continue
        if rules.place(conversation.digest()) >= rules.blocks or not conversation.has_answer:
            continue
        messages = [dict(message) for message in conversation.messages]
        whole = target.tokenizer.apply_chat_template(
            messages, tools=conversation.tools, tokenize=False
        )
        yield whole, "\n".join(message["content"] or "" for message in messages)


def batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Put items together, so many at a time."""
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


# --- choosing --------------------------------------------------------------------------------


def covered(counts: TokenCounts | None, ids: Any, part: str) -> dict[str, Any] | None:
    """Return which share of a part a vocabulary covers, with its 95 % interval."""
    if counts is None or not counts.total(part):
        return None
    low, high = counts.coverage_interval(ids, part)
    return {"coverage": counts.coverage(ids, part), "low": low, "high": high}


def figures_of(
    found: Any, counts: TokenCounts, test: TokenCounts | None, **more: Any
) -> dict[str, Any]:
    """Return what a table shows of a vocabulary that a search chose."""
    return {
        "k": found.k,
        "reduction": found.reduction,
        "utility": found.utility,
        "gap_to_exact": found.gap_to_exact,
        "search": covered(counts, found.vocabulary, "search"),
        "heldout": covered(counts, found.vocabulary, "heldout"),
        "test": covered(test, found.vocabulary, "all"),
        **more,
    }


def grid(
    counts: TokenCounts, test: TokenCounts | None, target: Target, trials: int
) -> list[dict[str, Any]]:
    """Search with every weight and least coverage, exactly and as the paper does."""
    cells = []
    for alpha in ALPHAS:
        for floor in FLOORS:
            how = {"alpha": alpha, "min_coverage": floor, "required": target.required}
            exact = search_vocabulary(counts, target.latency, **how)
            tpe = search_vocabulary(
                counts, target.latency, **how, method="tpe", trials=trials, progress=False
            )
            cells.append(
                {
                    "alpha": alpha,
                    "min_coverage": floor,
                    "exact": figures_of(exact, counts, test),
                    "tpe": figures_of(tpe, counts, test, distinct=tpe.study["distinct_sizes"]),
                }
            )
    return cells


def first(counted: np.ndarray, k: int, forced: Sequence[int] = ()) -> np.ndarray:
    """Return the k most frequent ids, filled up with the lowest ids that were never counted."""
    ranked = rank_ids(counted, np.asarray(sorted(forced), dtype=np.int64))[:k]
    others = np.setdiff1d(np.arange(counted.size), ranked)
    return np.sort(np.concatenate([ranked, others[: k - ranked.size]]))


def ways(
    counts: TokenCounts,
    test: TokenCounts | None,
    texts: TextCounts,
    raw: np.ndarray,
    general: np.ndarray | None,
    target: Target,
) -> dict[str, Any]:
    """Choose vocabularies as others do, of the same conversations, and judge all alike.

    Args:
        counts: what the assistant says in this domain.
        test: the same of its test data.
        texts: what others count of the same conversations.
        raw: int64 [V], raw text of all domains.
        general: int64 [V], what the assistant says in the domain `general`.
        target: whose ids they are.
    """
    own = counts.array("search")
    found = search_vocabulary(
        counts,
        target.latency,
        alpha=PAPER_ALPHA,
        min_coverage=PAPER_FLOOR,
        required=target.required,
    )
    k = found.k
    usual = min(USUAL, target.vocab_size)
    end = target.tokenizer.eos_token_id
    chosen: dict[str, Any] = {
        "vtrim": np.asarray(found.vocabulary.ids),
        "assistant": first(own, k),
        "conversation": first(texts.conversation, k),
        "raw": first(raw, k, () if end is None else (int(end),)),
        "fixed": first(own, usual),
    }
    if general is not None:
        chosen["fixed_general"] = first(general, usual)
    required = set(target.required)
    return {
        name: {
            "k": int(ids.size),
            "reduction": target.latency.reduction(int(ids.size)),
            "required_missing": len(required.difference(ids.tolist())),
            "heldout": covered(counts, ids, "heldout"),
            "test": covered(test, ids, "all"),
        }
        for name, ids in chosen.items()
    }


def sayable(counted: np.ndarray, target: Target) -> int:
    """Return how many ids were counted or are required: no vocabulary is larger."""
    return int(rank_ids(counted, target.required.ids).size)


def paper_run(
    counts: TokenCounts, test: TokenCounts | None, target: Target, trials: int
) -> dict[str, Any]:
    """Search as the paper's published run does: no required ids, 50 to 50,000 tokens."""
    exact = search_vocabulary(
        counts, target.latency, alpha=PAPER_ALPHA, k_max=50_000, multiple_of=1
    )
    tpe = search_vocabulary(counts, target.latency, preset="paper", trials=trials, progress=False)
    return {
        "exact": figures_of(exact, counts, test),
        "tpe": figures_of(tpe, counts, test, distinct=tpe.study["distinct_sizes"]),
    }


def crossed(
    counts: Mapping[str, TokenCounts], ood: Mapping[str, TokenCounts], target: Target
) -> dict[str, Any]:
    """Return what each domain's vocabulary covers of every domain and ood set."""
    rows: dict[str, Any] = {}
    for name, own in counts.items():
        found = search_vocabulary(
            own,
            target.latency,
            alpha=PAPER_ALPHA,
            min_coverage=PAPER_FLOOR,
            required=target.required,
        )
        on = {other: covered(data, found.vocabulary, "heldout") for other, data in counts.items()}
        far = {other: covered(data, found.vocabulary, "all") for other, data in ood.items()}
        rows[name] = {"k": found.k, "domains": on, "ood": far}
        if ood:
            tokens = {other: data.total("all") for other, data in ood.items()}
            share = sum(far[other]["coverage"] * tokens[other] for other in ood)
            rows[name]["ood_weighted"] = share / sum(tokens.values())
    return rows


# --- telling ---------------------------------------------------------------------------------


def percent(found: Mapping[str, Any] | None, interval: bool = True) -> str:
    """Write a coverage for people."""
    if found is None:
        return ""
    text = f"{found['coverage']:.2%}"
    return text + (f" ({found['low']:.2%} to {found['high']:.2%})" if interval else "")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table, line by line."""
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


WAYS = {
    "vtrim": "k* of this package: assistant's tokens, required ids kept",
    "assistant": "EAGLE-3's and SpecForge's order: assistant's tokens, nothing required",
    "conversation": "Model-Optimizer's: every token of the conversations, prompts too",
    "raw": "FR-Spec's: raw text, one list for all domains, EOS kept",
    "fixed": "EAGLE-3 and SpecForge as they are: fixed 32,000, this domain's counts",
    "fixed_general": "the same with the counts of `general`",
}


def markdown(found: Mapping[str, Any]) -> str:
    """Return what people read."""
    facts, domains, cross = found["facts"], found["domains"], found["crossed"]
    lines = [
        f"# Vocabularies for {facts['target']}",
        "",
        f"V = {facts['vocab_size']:,}; an EAGLE-3 draft's step by operations, as in the paper; "
        f"{facts['required']} required ids are part of every k of this package. Coverage is the "
        "share of the tokens that the assistant says, with a 95 % bootstrap interval over blocks "
        "of conversations. *Held-out*: a fifth of the conversations of train.jsonl, which chose "
        "nothing; *test*: test.jsonl, in some domains other data.",
        "",
        f"Data: {found['data']}; " + ", ".join(f"{n} {v}" for n, v in found["versions"].items()),
        "",
        f"    {found['command']}",
        "",
        "## The vocabulary of each domain",
        "",
        "Weight 0.5, no least coverage: the paper's setting.",
        "",
    ]
    rows = []
    for name, one in domains.items():
        exact = cell_of(one, PAPER_ALPHA, PAPER_FLOOR)["exact"]
        rows.append(
            [
                name,
                f"{one['tokens']['search']:,}",
                f"{one['sayable']:,}",
                f"{exact['k']:,}",
                f"{exact['reduction']:.1%}",
                percent(exact["search"]),
                percent(exact["heldout"]),
                percent(exact["test"]),
            ]
        )
    heads = ["domain", "tokens counted", "ids counted or required", "k*", "of a step saved"]
    lines += table([*heads, "search", "held-out", "test"], rows)
    lines += [
        "",
        "With weight 0.5 an id pays for its row if it is more than one token in "
        f"{tokens_a_row(facts['latency']):,.0f}: where fewer were counted, k* is every id that "
        "was seen, and more data would add ids.",
    ]
    lines += ["", "## As the paper's published run", ""]
    lines += [
        f"No required ids, 50 to 50,000 tokens, {found['trials']} trials of TPE with seed 42. The "
        f"paper's data sets are others, and its target has V = {PAPER_WIDTH:,}.",
        "",
    ]
    heads = ["domain", "exact k*", "TPE k*", "TPE's utility below the exact", "held-out", "paper"]
    lines += table(
        heads,
        [
            [
                name,
                f"{one['paper']['exact']['k']:,}",
                f"{one['paper']['tpe']['k']:,}",
                f"{one['paper']['tpe']['gap_to_exact']:.4%}",
                percent(one["paper"]["exact"]["heldout"], interval=False),
                f"{PAPER[name]:,}" if name in PAPER else "",
            ]
            for name, one in domains.items()
        ],
    )
    lines += ["", "## Every weight and least coverage", ""]
    lines += ["Exact k* / TPE k*, and held-out coverage of the exact one.", ""]
    heads = ["domain", "least coverage", *(f"weight {alpha}" for alpha in ALPHAS)]
    rows = []
    for name, one in domains.items():
        for floor in FLOORS:
            cells = [cell_of(one, alpha, floor) for alpha in ALPHAS]
            shown = [
                f"{c['exact']['k']:,} / {c['tpe']['k']:,}; "
                f"{percent(c['exact']['heldout'], interval=False)}"
                for c in cells
            ]
            rows.append([name, f"{floor:.0%}" if floor else "none", *shown])
    lines += table(heads, rows)
    gaps = [c["tpe"]["gap_to_exact"] for one in domains.values() for c in one["grid"]]
    lines += [
        "",
        f"TPE ends {np.median(gaps):.4%} (median; at most {max(gaps):.4%}) below the exact "
        f"utility in {len(gaps)} studies; it is exact in {sum(gap == 0 for gap in gaps)}.",
        "",
        "## Other ways to choose, judged alike",
        "",
        "All choose from the same conversations (raw text: from those of all domains together; "
        "FR-Spec itself counts a web corpus) and are judged on the same held-out ones, at the k* "
        "above; the fixed ones at 32,000. A vocabulary that misses required ids may be unable to "
        "end a turn or to spell what has no piece of its own.",
        "",
    ]
    for way, words in WAYS.items():
        lines.append(f"- `{way}`: {words}")
    names = [way for way in WAYS if any(way in one["ways"] for one in domains.values())]
    rows = []
    for name, one in domains.items():
        rows.append(
            [name, *(percent(one["ways"].get(w, {}).get("heldout"), False) for w in names)]
        )
        saved = [f"{one['ways'][w]['reduction']:.1%}" if w in one["ways"] else "" for w in names]
        rows.append(["of a step saved", *saved])
        rows.append(
            [
                "required ids missing",
                *(
                    str(one["ways"][w]["required_missing"]) if w in one["ways"] else ""
                    for w in names
                ),
            ]
        )
    lines += ["", *table(["held-out coverage", *names], rows)]
    lines += ["", "## Each vocabulary on every domain", "", "![Coverage](heat_map.png)", ""]
    ood = list(next(iter(cross.values()))["ood"])
    rows = [
        [
            f"{name} ({row['k']:,})",
            *(percent(row["domains"][other], interval=False) for other in domains),
            *(percent(row["ood"][other], interval=False) for other in ood),
        ]
        for name, row in cross.items()
    ]
    lines += table(["vocabulary of (k*)", *domains, *(f"ood: {name}" for name in ood)], rows)
    if ood and GENERAL in cross:
        row = cross[GENERAL]
        lines += ["", "## Out of distribution", ""]
        lines += [
            f"The vocabulary of `{GENERAL}` (k* = {row['k']:,}) on reference answers of sets that "
            "it was not counted on:",
            "",
            *table(["set", "coverage"], [[name, percent(row["ood"][name])] for name in ood]),
            "",
            f"Weighted by tokens: {row['ood_weighted']:.2%}. The paper: {PAPER_OOD:.1%} of the "
            "tokens that its target generates there, with 13,264 tokens.",
        ]
    return "\n".join([*lines, ""])


def tokens_a_row(latency: Mapping[str, Any]) -> float:
    """Return how many tokens an id may be one of to be worth its row, with weight 0.5.

    One token's share of the coverage must be more than one row's share of the step's cost.
    """
    head = latency["head_costs"][-1]
    return float((sum(latency["body"].values()) + head) / (head / latency["vocab_size"]))


def cell_of(one: Mapping[str, Any], alpha: float, floor: float) -> dict[str, Any]:
    """Return one cell of a domain's grid."""
    found: dict[str, Any] = next(
        cell for cell in one["grid"] if (cell["alpha"], cell["min_coverage"]) == (alpha, floor)
    )
    return found


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw the coverage of each domain's vocabulary on every domain and ood set."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = found["crossed"]
    ood = list(next(iter(rows.values()))["ood"])
    columns = [*rows, *ood]
    values = np.array(
        [
            [(row["domains"].get(name) or row["ood"].get(name))["coverage"] for name in columns]
            for row in rows.values()
        ]
    )
    size = (1.8 + 0.72 * len(columns), 1.6 + 0.5 * len(rows))
    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    image = axes.imshow(values, cmap="viridis", vmin=values.min(), vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=40, ha="right")
    axes.set_yticks(range(len(rows)), [f"{name} ({row['k']:,})" for name, row in rows.items()])
    axes.set_xlabel("tokens that the assistant says in (held-out)")
    axes.set_ylabel("vocabulary of (k*)")
    axes.set_title(f"Coverage, {found['facts']['target']}")
    if ood:
        axes.axvline(len(rows) - 0.5, color="white", linewidth=2)
    middle = (values.min() + 1) / 2
    for (i, j), value in np.ndenumerate(values):
        colour = "black" if value > middle else "white"
        axes.text(j, i, f"{value:.1%}", ha="center", va="center", color=colour, fontsize=7)
    figure.colorbar(image, ax=axes, format=lambda value, _: f"{value:.0%}")
    stream = io.BytesIO()
    figure.savefig(stream, dpi=150, format="png", metadata={"Software": None})
    pyplot.close(figure)
    write_atomically(path, stream.getvalue())


# --- running ---------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """Return what the figures may depend on."""
    names = ("transformers", "tokenizers", "optuna", "numpy")
    return {name: importlib.metadata.version(name) for name in names}


def measure(
    target: Target,
    domains: Sequence[Domain],
    data: Path,
    output: Path,
    *,
    trials: int,
    heldout: float,
    command: str,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure one target, or go on; what the same call has finished is only read."""
    far = {path.stem: path for path in sorted((data / OOD).glob("*.jsonl"))}
    call = {
        **target.facts,
        "domains": {domain.name: domain.identity for domain in domains},
        "ood": {name: identity_of(path) for name, path in far.items()},
        "trials": trials,
        "heldout": heldout,
        "alphas": ALPHAS,
        "floors": FLOORS,
    }
    name = hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()
    figures = output / "figures.json"
    if figures.is_file():
        there: dict[str, Any] = json.loads(figures.read_text("utf-8"))
        if there.get("call") == name:
            say(f"{figures} is of this call already; delete it to measure anew")
            write_atomically(output / "report.md", markdown(there).encode())
            return there
    output.mkdir(parents=True, exist_ok=True)
    counts: dict[str, TokenCounts] = {}
    tests: dict[str, TokenCounts | None] = {}
    texts: dict[str, TextCounts] = {}
    for domain in domains:
        start = time.perf_counter()
        counts[domain.name] = assistant_counts(domain.train, domain.name, target, heldout)
        tests[domain.name] = (
            None
            if domain.test is None
            else assistant_counts(domain.test, domain.name, target, 0.0)
        )
        texts[domain.name] = text_counts(domain.train, target, heldout)
        say(f"{target.slug}: {domain.name} counted in {time.perf_counter() - start:.0f} s")
    raw = np.sum([one.raw for one in texts.values()], axis=0)
    general = counts[GENERAL].array("search") if GENERAL in counts else None
    kept = KeptRows.beside(figures, call)
    done = {row["domain"] for row in kept.rows}
    if done:
        say(f"{target.slug}: going on, {len(done)} domains are searched already")
    for domain in domains:
        if domain.name in done:
            continue
        start = time.perf_counter()
        own, test = counts[domain.name], tests[domain.name]
        kept.add(
            {
                "domain": domain.name,
                "tokens": {part: own.total(part) for part in ("search", "heldout")},
                "conversations": {p: own.conversations(p) for p in ("search", "heldout")},
                "test_tokens": None if test is None else test.total("all"),
                "grid": grid(own, test, target, trials),
                "paper": paper_run(own, test, target, trials),
                "ways": ways(own, test, texts[domain.name], raw, general, target),
            }
        )
        say(f"{target.slug}: {domain.name} searched in {time.perf_counter() - start:.0f} s")
    by_name = {row["domain"]: row for row in kept.rows}
    sets = {}
    for set_name, path in far.items():
        sets[set_name] = assistant_counts(path, set_name, target, 0.0)
    found = {
        "call": name,
        "command": command,
        "data": str(data),
        "facts": target.facts,
        "trials": trials,
        "heldout": heldout,
        "versions": versions(),
        "domains": {
            domain.name: by_name[domain.name]
            | {"sayable": sayable(counts[domain.name].array("search"), target)}
            for domain in domains
        },
        "crossed": crossed(counts, sets, target),
    }
    draw(found, output / "heat_map.png")
    write_atomically(output / "report.md", markdown(found).encode())
    write_atomically(figures, (json.dumps(found, indent=1) + "\n").encode())
    kept.remove()
    return found


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Add the arguments that the benchmarks of vocabularies share, and read them all."""
    parser.add_argument("--data", type=Path, required=True, help="folder of domains")
    parser.add_argument(
        "--target", action="append", required=True, help="smollm2, llama3, folder or Hub id"
    )
    parser.add_argument("--layer-of", help="model whose config counts; for tokenizers alone")
    parser.add_argument("--domains", nargs="+", help="only these")
    parser.add_argument("--heldout", type=float, default=0.2, help="share of train.jsonl")
    args = parser.parse_args(argv)
    if not 0 < args.heldout < 1:
        parser.error(f"--heldout must lie between 0 and 1, got {args.heldout}")
    slugs = [Target(name).slug for name in args.target if name != "llama3"]
    if len(set(slugs)) < len(slugs):
        parser.error(f"targets must have different names, got {', '.join(args.target)}")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=100, help="of TPE, each time")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("examples/evidence/vocabulary"),
        help="a folder a target",
    )
    args = parsed(parser, argv)
    if args.trials < 1:
        parser.error(f"--trials must be at least 1, got {args.trials}")
    words = sys.argv[1:] if argv is None else argv
    command = shlex.join(["python", "examples/bench_vocabulary.py", *words])
    domains = domains_in(args.data, args.domains)
    for name in args.target:
        target = Target(name, args.layer_of)
        output = args.output / target.slug
        measure(
            target,
            domains,
            args.data,
            output,
            trials=args.trials,
            heldout=args.heldout,
            command=command,
        )
        print((output / "report.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
