"""What the paper sets and reports (arXiv 2603.05210), for the benchmarks to be read beside."""

from __future__ import annotations

PAPER_ALPHA, PAPER_FLOOR = 0.5, 0.0  # the weight of its published runs, and no least coverage
PAPER_WIDTH = 128_256  # V of its target
PAPER_K = {"general": 13_264, "ner": 6_521, "function_calling": 4_380}
PAPER_OOD = 0.971  # coverage of general's vocabulary, out of distribution
PAPER_BAND, PAPER_FROM = (13_000, 13_300), 10_000  # where k* stays, and from how many samples on
# Of throughput and of latency, which are one measurement.
PAPER_GAIN = {"ner": (0.196, -0.164), "function_calling": (0.100, -0.091)}
PAPER_FAR_GAIN = (0.022, 0.067)  # of throughput, out of distribution
PAPER_FAR_SETS = ("mt_bench", "gsm8k", "humaneval", "math500", "aime24")
