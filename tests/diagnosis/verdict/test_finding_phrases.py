from __future__ import annotations

import re

import pytest

from mlflow_stability.diagnosis.verdict import listed
from mlflow_stability.kinds.catalog import KINDS, NAMED, noun_of
from mlflow_stability.vocabulary.run import RUN_STATUS
from mlflow_stability.vocabulary.text.phrases import how_process_ended

VOWEL = re.compile(r"(?:[aeio]|u(?!n[ai]))")
PARTICIPLE = re.compile(r"\b\w+(?:eds|eses|ss s|ys|chs|shs|ums of)\b|_")
"""Wrong plurals ("faileds", "batchs", "summarys"), and names of programs."""


def test_every_kind_of_the_catalog_has_its_noun_and_no_other_has() -> None:
    assert set(NAMED) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_one_of_a_kind_reads_as_one(kind: str) -> None:
    noun = noun_of(kind)
    article, _, rest = noun.partition(" ")
    assert not PARTICIPLE.search(noun)
    if NAMED[kind].plural:
        assert article in ("a", "an", "the"), noun
    if article in ("a", "an"):
        assert (article == "an") == bool(VOWEL.match(rest)), noun
    head = re.split(r" (?:that|of|on|out|in)\b", noun)[0]
    assert not re.fullmatch(r".*\w+ed", head), noun  # a participle is no noun: "a checkpoint failed"


@pytest.mark.parametrize("kind", KINDS)
def test_several_of_a_kind_read_as_several(kind: str) -> None:
    text = listed([kind, kind])
    assert not PARTICIPLE.search(text)
    if not NAMED[kind].plural:
        assert text == noun_of(kind)
        return
    number, _, rest = text.partition(" ")
    assert number == "2"
    head = re.split(r" (?:that|of|on|out|in)\b", rest)[0]
    assert head.endswith("s"), text
    assert not head.startswith(("a ", "an ", "the ")), text
    for singular, plural in (("is", "are"), ("was", "were")):
        assert f"that {singular} " not in rest, f"{text}: {plural}"


def test_kinds_are_listed_with_their_numbers() -> None:
    assert listed(["checkpoint_failed"] * 2) == "2 checkpoints that failed"
    assert listed(["loss_spike", "nan_detected", "loss_spike", "plateau"]) == "2 loss spikes, NaN and a plateau"
    assert listed(["broken_batch"]) == "a broken batch"


def test_a_kind_defined_by_the_user_is_phrased_in_the_words_of_its_name() -> None:
    assert noun_of("reward_hacked") == "reward hacked"
    assert noun_of("reward_hacked", 1200) == "reward hacked (1,200 times)"


@pytest.mark.parametrize("outcome", [*RUN_STATUS, "running", "SCHEDULED", "some_other"])
def test_how_a_process_ended_is_a_sentence(outcome: str) -> None:
    text = how_process_ended(outcome)
    assert re.fullmatch(r"The process (?:is|was|ran|crashed|finished|exited|ended)\b[^_]*", text)


def test_a_process_that_was_killed_or_ran_out_of_memory_has_its_own_sentence() -> None:
    assert how_process_ended("killed") == "The process was killed"
    assert how_process_ended("out_of_memory") == "The process ran out of memory"
