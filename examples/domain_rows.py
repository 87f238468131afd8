"""What each domain of the benchmarks is made of: its files' rows as conversations, and parts."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from domain_files import Files, progress
from domain_formats import Row, entities, parsed_lines, questions_and_answers, tagged
from domain_sources import (
    AIME24,
    BFCL,
    CODEGEN,
    GLAIVE,
    GSM8K_TEST,
    GSM8K_TRAIN,
    HUMANEVAL,
    IFEVAL_ANSWERS,
    MATH_500,
    MATH_REST,
    MATH_TEST,
    MEDQUAD,
    MEDQUAD_ROWS,
    MT_ANSWERS,
    MT_QUESTIONS,
    NER,
    OASST_REPORTS,
    PUBMEDQA,
    QLORA,
    SONGYS,
    SPIDER_DEV,
    SPIDER_SYN,
    Source,
)

TEST_PERCENT = 15

Split = Iterator[tuple[str, Row]]


def chat(source: str, *turns: str) -> Row:
    """Return a conversation: what is said, the user first."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(turns)]
    return {"messages": messages, "source": source}


def split_of(key: str) -> str:
    """Put a prompt into the training or the test part, by its hash."""
    number = int(hashlib.sha256(key.encode()).hexdigest(), 16)
    return "test" if number % 100 < TEST_PERCENT else "train"


def sql(files: Files) -> Split:
    """Questions to databases, and one query each: Spider-Syn, and Spider's dev part."""
    for source, split, field in (
        (SPIDER_SYN, "train", "SpiderSynQuestion"),
        (SPIDER_DEV, "test", "question"),
    ):
        for row in files.rows(source):
            asked = f"Write one SQL query for the database '{row['db_id']}'.\n{row[field]}"
            yield split, chat(source.place, asked, row["query"])


def math(files: Files) -> Split:
    """School mathematics with worked answers: GSM8K."""
    for source, split in ((GSM8K_TRAIN, "train"), (GSM8K_TEST, "test")):
        for row in files.rows(source):
            yield split, chat(source.place, row["question"], row["answer"])


def math_hard(files: Files) -> Split:
    """Competition mathematics: MATH's test part without MATH-500, and MATH-500."""
    held = files.rows(MATH_500)
    known = {"".join(row["problem"].split()) for row in held}
    every = parsed_lines(files.bytes_of(MATH_TEST))
    rest = [row for row in every if "".join(row["problem"].split()) not in known]
    files.check(f"{MATH_TEST.place} without MATH-500", rest, MATH_REST)
    for source, split, rows in ((MATH_TEST, "train", rest), (MATH_500, "test", held)):
        for row in rows:
            yield split, chat(source.place, row["problem"], row["solution"])


def code(files: Files) -> Split:
    """Programs to instructions: GPTeacher, and HumanEval."""
    for row in files.rows(CODEGEN):
        asked = row["instruction"] + (f"\n\n{row['input']}" if row.get("input") else "")
        yield "train", chat(CODEGEN.place, asked, row["response"])
    for row in files.rows(HUMANEVAL):
        yield "test", completed(row)


def completed(row: Row) -> Row:
    """Return a HumanEval problem as a conversation."""
    asked = f"Complete this Python function.\n{row['prompt']}"
    return chat(HUMANEVAL.place, asked, row["canonical_solution"])


def medical(files: Files) -> Split:
    """Medical questions: of patients (MedQuAD) and of research (PubMedQA)."""
    answered: list[Row] = []
    for number, source in enumerate(MEDQUAD, 1):
        answered += questions_and_answers(source.path, files.bytes_of(source))
        progress("MedQuAD", number, len(MEDQUAD))
    by_line = sorted(answered, key=lambda row: json.dumps(row, ensure_ascii=False))
    files.check("MedQuAD", by_line, MEDQUAD_ROWS)
    for row in answered:
        yield (
            split_of(row["question"]),
            chat(MEDQUAD[0].repository.name, row["question"], row["answer"]),
        )
    for row in files.rows(PUBMEDQA):
        if row["LONG_ANSWER"]:
            asked = row["QUESTION"]
            yield split_of(asked), chat(PUBMEDQA.place, asked, row["LONG_ANSWER"])


def korean(files: Files) -> Split:
    """Small talk in Korean."""
    for row in files.rows(SONGYS):
        yield split_of(row["Q"]), chat(SONGYS.place, row["Q"], row["A"])


def function_calling(files: Files) -> Split:
    """Calls of functions as JSON: the Berkeley leaderboard, and Glaive's dialogues."""
    begin = "You may call these functions:\n{}\n\nReply with a JSON list of calls.\n{}"
    for questions, answers in BFCL:
        asked_by_id = {row["id"]: row for row in files.rows(questions)}
        for row in files.rows(answers):
            asked = asked_by_id.get(row["id"])
            if asked is None:
                continue
            turns = asked["question"]
            turns = turns[0] if isinstance(turns[0], list) else turns
            text = "\n".join(turn["content"] for turn in turns if turn["role"] != "system")
            tools = json.dumps(asked["function"], ensure_ascii=False)
            calls = [
                {"name": name, "arguments": first_values(arguments)}
                for call in row["ground_truth"]
                for name, arguments in call.items()
            ]
            reply = json.dumps(calls, ensure_ascii=False)
            yield split_of(text), chat(questions.place, begin.format(tools, text), reply)
    for row in files.rows(GLAIVE):
        turns = row["conversations"]
        for before, turn in itertools.pairwise(turns):
            if turn["from"] == "function_call":
                asked = begin.format(row.get("tools", ""), before["value"])
                yield split_of(before["value"]), chat(GLAIVE.place, asked, f"[{turn['value']}]")


def first_values(arguments: Mapping[str, list[Any]]) -> Row:
    """Take the first of the values that an argument may have; "" stands for leaving it out."""
    return {name: v[0] for name, v in arguments.items() if v and v[0] != ""}


def ner(files: Files) -> Split:
    """Named entities of sentences, as JSON by kind."""
    for source, split in NER:
        sentences = list(tagged(files.bytes_of(source).decode()))
        found = {tag.partition("-")[2] for _, tags in sentences for tag in tags if "-" in tag}
        kinds = ", ".join(sorted(found))
        for words, tags in sentences:
            text = " ".join(words)
            asked = f"List the named entities of these kinds: {kinds}. Reply with JSON.\n{text}"
            reply = json.dumps(entities(words, tags), ensure_ascii=False)
            yield split or split_of(text), chat(source.place, asked, reply)


def general(files: Files) -> Split:
    """Answers of models to mixed prompts of people. To be counted, not to be trained on."""
    for source in OASST_REPORTS:
        for row in files.rows(source):
            for output in row["outputs"]:
                if output:
                    yield split_of(row["prompt"]), chat(source.place, row["prompt"], output)
    for row in files.rows(QLORA):
        last = row["input"].rpartition("### Human:")[2]
        asked = last.partition("### Assistant:")[0].strip()
        yield split_of(asked), chat(QLORA.place, asked, row["generation"])
    for source in IFEVAL_ANSWERS:
        for row in files.rows(source):
            yield split_of(row["prompt"]), chat(source.place, row["prompt"], row["response"])


def mt_bench(files: Files) -> Iterator[Row]:
    """Questions in two turns with GPT-4's answers, which 30 of 80 have; else the first turn."""
    answers = {row["question_id"]: row["choices"][0]["turns"] for row in files.rows(MT_ANSWERS)}
    for row in files.rows(MT_QUESTIONS):
        turns, given = row["turns"], answers.get(row["question_id"])
        if given is None:
            yield chat(MT_QUESTIONS.place, turns[0])
        else:
            pairs = zip(turns, given, strict=True)
            yield chat(MT_ANSWERS.place, *(text for pair in pairs for text in pair))


def plain(source: Source, question: str, answer: str) -> Callable[[Files], Iterator[Row]]:
    """Make rows of two fields of a file."""
    return lambda files: (
        chat(source.place, row[question], row[answer]) for row in files.rows(source)
    )


DOMAINS: dict[str, Callable[[Files], Split]] = {
    "sql": sql,
    "math": math,
    "math_hard": math_hard,
    "code": code,
    "medical": medical,
    "korean": korean,
    "function_calling": function_calling,
    "ner": ner,
    "general": general,
}
OOD: dict[str, Callable[[Files], Iterator[Row]]] = {
    "mt_bench": mt_bench,
    "gsm8k": plain(GSM8K_TEST, "question", "answer"),
    "humaneval": lambda files: (completed(row) for row in files.rows(HUMANEVAL)),
    "math500": plain(MATH_500, "problem", "solution"),
    "aime24": plain(AIME24, "problem", "solution"),
}
USED: dict[str, tuple[Source, ...]] = {
    "sql": (SPIDER_SYN, SPIDER_DEV),
    "math": (GSM8K_TRAIN, GSM8K_TEST),
    "math_hard": (MATH_TEST, MATH_500),
    "code": (CODEGEN, HUMANEVAL),
    "medical": (*MEDQUAD, PUBMEDQA),
    "korean": (SONGYS,),
    "function_calling": (*(source for pair in BFCL for source in pair), GLAIVE),
    "ner": tuple(source for source, _ in NER),
    "general": (*OASST_REPORTS, QLORA, *IFEVAL_ANSWERS),
    "ood": (MT_QUESTIONS, MT_ANSWERS, GSM8K_TEST, HUMANEVAL, MATH_500, AIME24),
}
