"""The gate: whether a start is let in, from facts alone."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from airflow_eos.core.protocol.decision import OpenWork
from airflow_eos.core.protocol.participant import (
    Note,
    Owner,
    Ownership,
    StartFacts,
    admission,
    decision_lost,
)
from airflow_eos.errors import KafkaUnavailableError, OwnershipError, Remedy
from tests.support.pipelines import commit_of

US = Owner("us", "/a")
CLEAR = Remedy(commands=("airflow-eos recover CHECKPOINT --prefix etl --allow orphan",), start=True)
FREE = Ownership("prefix 'etl'", clear=CLEAR)
OURS = replace(FREE, owner=US)
FLINKS = OpenWork("kafka", "sink", "etl-0-7-1-0", 1_000, 60_000, whose="Flink")
SEVENTH = commit_of(7, nonce="a" * 32)
LATER = StartFacts(
    US, newest_planned=8, has_promised=True, newest_settled=7, decisions={7: (SEVENTH,)}
)


def noted(name: Ownership, batch: int, pipeline: str = "us") -> Ownership:
    return replace(name, notes=(*name.notes, Note(batch, 1, "a" * 32, pipeline)))


def test_a_first_start_where_nothing_is_open_is_let_in():
    assert admission(StartFacts(US, names=(FREE,))).error is None


def test_a_first_start_over_open_work_says_whose_it_is_since_when_and_the_ways_on():
    found = admission(StartFacts(US, names=(FREE,), open=(FLINKS,)))
    assert isinstance(found.error, OwnershipError)
    for said in ("etl-0-7-1-0 (Flink)", "1970-01-01 00:00:01 UTC", "another prefix"):
        assert said in str(found.error)
    word = found.error.remedies[1]
    assert word.commands == ("airflow-eos recover /a --prefix etl --allow orphan",)
    assert word.costs


def test_a_way_on_is_a_command_that_a_shell_reads_also_where_the_place_has_a_blank():
    found = admission(StartFacts(Owner("us", "/my data/q"), names=(FREE,), open=(FLINKS,)))
    assert found.error is not None
    [command] = found.error.remedies[1].commands
    assert shlex.split(command)[2] == "/my data/q"


@pytest.mark.parametrize("planned", [None, 0])
def test_before_a_batch_is_planned_nothing_that_is_open_is_ones_own(planned: int | None):
    """Its own claim covers what it opens after it has planned a batch, and nothing before."""
    facts = StartFacts(US, newest_planned=planned, names=(OURS,), open=(FLINKS,))
    assert (admission(facts).error is None) is (planned == 0)


def test_a_question_without_an_answer_is_neither_yes_nor_no():
    found = admission(replace(LATER, unanswered=KafkaUnavailableError("nobody answers")))
    assert not found.known
    with pytest.raises(KafkaUnavailableError, match="nobody answers"):
        found.require()


def test_what_a_system_refuses_by_itself_is_a_no():
    found = admission(replace(LATER, refused=OwnershipError("set back")))
    assert found.known
    with pytest.raises(OwnershipError, match="set back"):
        found.require()


def test_a_memory_that_is_gone_is_said_and_no_first_start():
    found = admission(replace(LATER, names=(FREE,)))
    assert found.error is None
    assert "what was remembered is gone" in found.remarks[0]


def test_what_was_delivered_since_makes_it_an_older_copy_where_the_memory_is_gone():
    word = Remedy(commands=("airflow-eos disown etl --yes",), start=True)
    names = (replace(FREE, give_up=word),)
    found = admission(
        replace(LATER, names=names, later="its coordinator has committed etl-eos-0-0")
    )
    assert isinstance(found.error, OwnershipError)
    assert "older copy" in str(found.error)
    assert "committed etl-eos-0-0" in str(found.error)
    assert [each.commands for each in found.error.remedies] == [(), word.commands]
    assert found.error.remedies[1].costs


def test_a_claim_without_the_notes_of_what_is_over_is_a_memory_that_is_gone():
    assert admission(replace(LATER, names=(OURS,))).remarks
    found = admission(replace(LATER, names=(noted(OURS, 7),)))
    assert (found.error, found.remarks) == (None, ())


def test_a_promise_in_flight_that_its_driver_could_not_note_is_no_lost_memory():
    in_flight = replace(LATER, newest_settled=None, names=(OURS,))
    assert admission(in_flight).remarks == ()


@pytest.mark.parametrize("batch", [6, 7])
def test_the_decision_of_the_batch_before_is_lost(batch: int):
    """Its note says that it was delivered; an older one has gone with Spark's, in order."""
    facts = replace(LATER, has_promised=False, newest_settled=None, decisions={})
    found = admission(replace(facts, names=(noted(OURS, batch),)))
    if batch == 6:
        assert found.error is None
    else:
        assert "does not hold the decision of batch 7" in str(found.error)
        assert found.error.remedies == decision_lost(7)


def test_notes_of_another_pipeline_say_nothing_of_this_one():
    name = noted(noted(OURS, 7), 400, "them")
    assert admission(replace(LATER, names=(name,))).error is None
