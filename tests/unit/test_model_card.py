"""The card of a published draft: facts in, Markdown out, and the user's own text stays."""

from __future__ import annotations

import ast
import itertools
import re
from typing import Any

import numpy as np
import pytest
import yaml

from published_facts import Pair, make_pair, make_training
from vtrim_hf import TrimmedDraftForCausalLM
from vtrim_hf.coverage_metadata import make_metadata
from vtrim_hf.model_card import license_of, render_card, renew, source_of, split_card


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make_pair()


@pytest.fixture(scope="module")
def full(pair: Pair) -> dict[str, Any]:
    return make_metadata(
        pair.draft,
        search=pair.search,
        report=pair.report,
        counts=pair.counts,
        target_id="me/target",
        draft_id="me/small",
        datasets=["me/data"],
        tokenizer=pair.tokenizer,
    )


@pytest.fixture(scope="module")
def trained(pair: Pair) -> dict[str, Any]:
    """Facts of an EAGLE-3 draft with all that can be known."""
    draft = TrimmedDraftForCausalLM.for_target(pair.target, pair.draft.vocabulary)
    return make_metadata(
        draft,
        search=pair.search,
        report=pair.report,
        counts=pair.counts,
        target_id="me/target",
        datasets=["me/data"],
        tokenizer=pair.tokenizer,
        training=make_training(draft),
    )


def test_front_matter_is_what_is_known(full: dict[str, Any]) -> None:
    front, _ = split_card(render_card("me/sql-draft", full, "apache-2.0", language="en"))
    assert front == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "apache-2.0",
        "base_model": "me/small",
        "tags": [
            "vtrim",
            "speculative-decoding",
            "draft-model",
            "trimmed-vocabulary",
            "sql",
            "chat",
        ],
        "datasets": ["me/data"],
        "language": ["en"],
    }


def test_what_is_not_known_is_not_in_the_front_matter(pair: Pair) -> None:
    card = render_card("me/x", make_metadata(pair.draft), "mit")
    front, body = split_card(card)
    assert set(front) == {"library_name", "pipeline_tag", "license", "tags"}
    assert "Not recorded." in body
    assert "Not measured yet" in body
    for word in ("None", "null", "nan", "Undefined"):
        assert not re.search(rf"\b{word}\b", card), word


def test_figures_of_the_facts_are_in_the_tables(full: dict[str, Any]) -> None:
    card = render_card("me/sql-draft", full, "apache-2.0")
    heldout = full["coverage"]["domains"]["sql"]["heldout"]
    low, high = heldout["interval"]
    shown = f"{100 * heldout['share']:.2f} % ({100 * low:.2f} to {100 * high:.2f})"
    tokens = f"{heldout['tokens']:,} in {heldout['conversations']} conversations"
    assert f"| sql | {shown} | {tokens} |" in card
    assert "| all | " in card
    spread = full["decoding"]["speedup"]
    assert f"{spread['median']:.2f} ({spread['low']:.2f} to {spread['high']:.2f})" in card
    assert "Test CPU, device cpu, threads 1, torch 2.13.0" in card
    assert "| full | 300 | |" in card
    assert full["draft"]["fingerprint"] in card
    assert f"holds {full['draft']['k']} of the target's 300 tokens" in card
    assert "arXiv" in card
    for token in full["most_missed_tokens"]["tokens"]:
        assert f"| {token['id']} | " in card


def test_every_table_has_as_many_cells_in_each_row(full: dict[str, Any]) -> None:
    """Texts with bars and backticks included."""
    full = {**full, "most_missed_tokens": {"of": "search", "tokens": []}}
    texts = [
        "\u202e|\u200b",
        "\\",
        "\\|",
        "\\\\|",
        "|",
        "`",
        "``a`|",
        "\n",
        " ",
        "<!-- vtrim:end missed -->",
        "a\\|b",
        "<b>",
    ]
    full["most_missed_tokens"]["tokens"] = [
        {"id": index, "count": 1, "share": 0.1, "text": text} for index, text in enumerate(texts)
    ]
    domains = {"a|b\u202e": full["coverage"]["domains"]["sql"], "*c*\n<i>": {"weak": True}}
    full["coverage"] = {**full["coverage"], "domains": domains}
    card = render_card("me/x", full, "mit")
    tables = re.findall(r"(?:^\|.*\n)+", card, re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        rows = [re.split(r"(?<!\\)\|", line) for line in table.splitlines()]
        assert {len(row) for row in rows} == {len(rows[0])}, table
    assert "<i>" not in card.replace("\\<i\\>", "")
    assert "\u202e" not in card
    assert renew(card, card) == card


def test_the_snippet_is_python_and_names_the_repositories(full: dict[str, Any]) -> None:
    for chat in (True, False):
        card = render_card("me/sql-draft", full, "mit", chat=chat)
        (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
        compile(code, "snippet", "exec")
        assert '"me/sql-draft"' in code
        assert code.count('"me/target"') == 2
        assert ("apply_chat_template" in code) is chat


def test_users_text_and_fields_stay(full: dict[str, Any]) -> None:
    first = render_card("me/x", full, "mit", tags=["extra"])
    mine = first.replace("# x\n", "# My own title\n\nWritten by me.\n")
    mine = mine.replace(
        "<!-- vtrim:begin limits -->", "## Thanks\n\nTo all.\n\n<!-- vtrim:begin limits -->"
    )
    mine = mine.replace("## Limits", "## Limits changed by hand")
    mine = mine.replace("tags:\n", "co2_eq_emissions: 3\ntags:\n- mine\n")
    newer = {**full, "datasets": ["me/other"], "draft": {**full["draft"], "parameters": 777_777}}
    card = render_card("me/x", newer, "mit", existing=mine)
    front, body = split_card(card)
    assert "# My own title\n\nWritten by me.\n" in body
    assert "## Thanks\n\nTo all.\n" in body
    assert "changed by hand" not in body
    assert "777,777" in body
    assert front["co2_eq_emissions"] == 3
    assert front["tags"][0] == "mine"
    assert "extra" in front["tags"]
    assert front["datasets"] == ["me/data", "me/other"]
    assert render_card("me/x", newer, "mit", existing=card) == card


def test_a_section_that_was_taken_out_stays_out(full: dict[str, Any]) -> None:
    card = render_card("me/x", full, "mit")
    without = re.sub(r"<!-- vtrim:begin citation.*?end citation -->\n", "", card, flags=re.DOTALL)
    assert "Citation" in card
    assert "Citation" not in without
    assert render_card("me/x", full, "mit", existing=without) == without


def test_a_card_of_others_keeps_its_text_and_gets_our_sections(full: dict[str, Any]) -> None:
    card = render_card("me/x", full, "mit", existing="---\nlicense: mit\n---\n# Mine\n\nText.\n")
    _, body = split_card(card)
    assert body.lstrip().startswith("# Mine\n\nText.\n\n<!-- vtrim:begin summary -->")
    assert body.count("<!-- vtrim:begin") == 9


def test_sections_of_a_newer_release_are_left_as_they_are(full: dict[str, Any]) -> None:
    section = "<!-- vtrim:begin future -->\nNew.\n<!-- vtrim:end future -->"
    card = render_card("me/x", full, "mit") + section + "\n"
    assert section in render_card("me/x", full, "mit", existing=card)


@pytest.mark.parametrize(
    "broken",
    [
        "<!-- vtrim:begin use -->\nno end\n",
        "<!-- vtrim:end use -->\n",
        "<!-- vtrim:begin use -->\n<!-- vtrim:begin facts -->\n<!-- vtrim:end facts -->\n",
        "<!-- vtrim:begin use -->\n<!-- vtrim:end facts -->\n",
        "<!-- vtrim:begin use -->\n<!-- vtrim:end use -->\n" * 2,
    ],
)
def test_marks_that_do_not_pair_are_refused(full: dict[str, Any], broken: str) -> None:
    with pytest.raises(ValueError, match="do not pair up"):
        render_card("me/x", full, "mit", existing=broken)


@pytest.mark.parametrize("front", ["a: [", "- list", "text", "a: !!python/object:os.system x"])
def test_front_matter_that_cannot_be_read_is_refused(full: dict[str, Any], front: str) -> None:
    with pytest.raises(ValueError, match=r"front matter of the card \(README\.md\)"):
        render_card("me/x", full, "mit", existing=f"---\n{front}\n---\n# Mine\n")


def test_a_licence_is_asked_for(full: dict[str, Any]) -> None:
    nothing: Any
    for nothing in ("", {}):
        with pytest.raises(ValueError, match="pass license="):
            render_card("me/x", full, nothing)


def test_a_licence_of_ones_own_has_a_name_that_another_does_not_inherit(
    full: dict[str, Any],
) -> None:
    own = {"license": "other", "license_name": "mine", "license_link": "LICENSE.md"}
    card = render_card("me/x", full, own)
    assert license_of(card) == own
    assert license_of(render_card("me/x", full, "mit", existing=card)) == {"license": "mit"}
    assert license_of(render_card("me/x", full, own, existing=card)) == own


@pytest.mark.parametrize(
    "card", [None, "", "# text", "---\nlicense: [a]\n---\n", "---\na: [\n---\n"]
)
def test_no_licence_is_read_where_none_is_said(card: str | None) -> None:
    assert license_of(card) == {}


def test_line_breaks_and_byte_order_marks_of_others_are_read(full: dict[str, Any]) -> None:
    card = render_card("me/x", full, "mit").replace("\n", "\r\n")
    front, _ = split_card("\ufeff" + card)
    assert front["license"] == "mit"
    again = render_card("me/x", full, "mit", existing="\ufeff" + card)
    assert again.count("vtrim:begin") == 9


def test_yaml_of_the_front_matter_is_plain(full: dict[str, Any]) -> None:
    text = render_card("me/x", full, "mit").split("---\n")[1]
    assert "!!" not in text
    assert yaml.safe_load(text)["license"] == "mit"


def test_only_a_tokenizer_that_is_there_is_named(pair: Pair) -> None:
    facts = make_metadata(pair.draft)
    held = "tokenizer that this repository holds"
    assert held in render_card("me/x", facts, "mit", tokenizer=True)
    without = render_card("me/x", facts, "mit", tokenizer=False)
    assert held not in without
    assert "# The target is any model of the draft's tokenizer" in without


def test_an_eagle_draft_is_its_targets(trained: dict[str, Any]) -> None:
    front, body = split_card(render_card("me/eagle", trained, "mit"))
    assert front["base_model"] == source_of(trained) == "me/target"
    assert front["tags"][4:] == ["eagle3", "sql", "chat"]
    assert "It is an EAGLE-3 draft" in body
    assert "It drafts for the one target" in body
    assert "2503.01840" in body
    assert "2603.05210" in body


def test_the_training_is_told_in_words_and_figures(trained: dict[str, Any]) -> None:
    body = render_card("me/eagle", trained, "mit")
    section = body.partition("vtrim:begin training")[2].partition("vtrim:end training")[0]
    assert "Acceptance length 2.50 on held-out conversations, 2 tokens drafted in a row" in section
    assert "each of them: 70.0 %, 55.0 %." in section
    said = "2.05 after 10,000 tokens, 2.10 after 20,000 tokens, 2.20 after 40,000 tokens, "
    assert f"it was {said}2.50 after 50,000 tokens, 2.30 after 60,000 tokens; " in section
    assert "the checkpoint of step 50 was kept, the best one." in section
    for row in (
        "| text read | 60,000 tokens, 60 steps, 6.0 epochs |",
        "| data | 1,200 conversations, 150,000 tokens, 60,000 of them the assistant's |",
        "| held out | 60 conversations, 150,000 tokens, 60,000 of them the assistant's |",
        "| time | 6.5 minutes: features 1.0, training 5.0, evaluation 0.5 |",
        "| tokens drafted in a row | 2 |",
        "| learning rate | 0.001, cosine |",
        "| sequences a step | 16 |",
        "| computed in | bfloat16 |",
        "| positions whose token has no row | 1.00 % in training, 3.00 % held out |",
        "| confidence calibrated on | 16 held-out prompts, 400 proposals |",
        "| data sets | [me/chats](https://huggingface.co/datasets/me/chats) |",
    ):
        assert row in section, row
    assert "interrupted" not in section
    assert "secret" not in body


def test_a_training_that_is_not_known_is_not_told_of(
    trained: dict[str, Any], full: dict[str, Any]
) -> None:
    without = {name: part for name, part in trained.items() if name != "training"}
    assert "How it was trained is not recorded." in render_card("me/x", without, "mit")
    assert "No training is recorded: the rows" in render_card("me/x", full, "mit")
    little = {**trained, "training": {"settings": {}, "finished": False, "tokens": 5}}
    card = render_card("me/x", little, "mit")
    assert "The training was interrupted." in card
    assert "| text read | 5 tokens |\n\n" not in card
    assert "| text read | 5 tokens |" in card
    # A card of an untrained draft gets the section filled when it is trained.
    assert "| learning rate |" in render_card(
        "me/x", trained, "mit", existing=render_card("me/x", without, "mit")
    )


def test_the_command_measures_as_it_was_measured(
    full: dict[str, Any], trained: dict[str, Any]
) -> None:
    command = "vtrim measure me/target me/x PROMPTS --limit 2 --max-new-tokens 12"
    for facts in (full, trained):
        assert (
            f"```\n{command} --draft-length 4 --threshold 0.4 --dtype float32\n```"
            in render_card("me/x", facts, "mit")
        )
    sampled = {**full["decoding"], "settings": {"do_sample": True}}
    card = render_card("me/x", {**full, "decoding": sampled}, "mit")
    assert "PROMPTS" not in card
    assert "`vtrim measure` gives this table for yours" in card


def test_folders_that_other_tools_wrote_into_a_card_are_taken_out(pair: Pair) -> None:
    theirs = (
        "---\nbase_model: /home/me/models/small\ndatasets:\n- ./data\n- me/kept\n"
        "mine: /my/own/word\n---\n# Mine\n"
    )
    front, _ = split_card(render_card("me/x", make_metadata(pair.draft), "mit", existing=theirs))
    assert "base_model" not in front
    assert front["datasets"] == ["me/kept"]
    assert front["mine"] == "/my/own/word"


def test_texts_of_numpy_are_plain_in_the_front_matter(full: dict[str, Any]) -> None:
    card = render_card(
        "me/x",
        full,
        {"license": np.str_("other"), "license_name": np.str_("mine")},
        language=[np.str_("en")],
        tags=np.array(["one", "two"]),
    )
    front, _ = split_card(card)
    assert (front["language"], front["tags"][-2:]) == (["en"], ["one", "two"])
    assert license_of(card) == {"license": "other", "license_name": "mine"}


def bomb(first: str, line: str) -> str:
    """Nine references to nine of the line before, ten times over."""
    lines = [first.format(name="a")]
    for before, name in itertools.pairwise("abcdefghij"):
        lines.append(line.format(name=name, before=", ".join([f"*{before}"] * 9)))
    return "---\n" + "\n".join(lines) + "\n---\n# Card\n"


@pytest.mark.parametrize(
    "card",
    [
        "---\nw: !!bool zz\n---\n",
        "---\nw: !!int ''\n---\n",
        "---\nw: !!timestamp zz\n---\n",
        "---\nw: !!binary 'é'\n---\n",
        "---\n? [1, 2]\n: 3\n---\n",
        "---\nw: " + "9" * 5000 + "\n---\n",
        "---\nw: &a [*a]\nlicense: mit\n---\n",
        "---\nw: " + "[" * 5000 + "\n---\n",
        bomb("- &{name} [x, x]", "- &{name} [{before}]"),
        bomb("{name}: &{name} [x, x]", "{name}: &{name} [{before}]"),
        bomb("{name}: &{name} {{k: 1}}", "{name}: &{name}\n  <<: [{before}]"),
    ],
    ids=range(11),
)
def test_a_hostile_front_matter_is_no_more_than_a_value_error(card: str) -> None:
    with pytest.raises(ValueError, match=r"card \(README\.md\)") as caught:
        split_card(card)
    assert len(str(caught.value)) < 1000
    assert license_of(card) == {}


def test_references_in_measure_are_read() -> None:
    held, _ = split_card("---\na: &a {k: [1]}\nb: {<<: *a, c: *a}\n---\n")
    assert held["b"] == {"k": [1], "c": {"k": [1]}}


def test_what_is_no_text_in_a_list_of_the_card_is_left_out(full: dict[str, Any]) -> None:
    held = "---\ntags: [mine, {a: b}, [c], 7]\ndatasets: {x: y}\n---\n# Mine\n"
    front, _ = split_card(render_card("me/x", full, "mit", existing=held))
    assert front["tags"][:2] == ["mine", "7"]
    assert all(isinstance(name, str) for name in front["datasets"])


@pytest.mark.parametrize("name", ['a"b', "a`b", "x'y", "c#", "50%"])
def test_the_snippet_of_a_branch_is_python(full: dict[str, Any], name: str) -> None:
    card = render_card("me/x", full, "mit", revision=name)
    snippet = card.partition("```python\n")[2].partition("```")[0]
    calls = [node for node in ast.walk(ast.parse(snippet)) if isinstance(node, ast.Call)]
    said = [word.value for call in calls for word in call.keywords if word.arg == "revision"]
    assert [ast.literal_eval(value) for value in said] == [name]
