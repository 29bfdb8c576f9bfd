"""A batch accepted as it is: only what holds the pipeline up, and said with its missing rows."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.progress import SourceProgress
from airflow_eos.core.checkpoint.rulings import accept, read_acceptance, rulings_on_promise
from airflow_eos.core.protocol.promise import Promise
from airflow_eos.core.recovery.acceptance import InputRange, shortfall, skippable
from airflow_eos.errors import (
    CheckpointFormatError,
    ConfigurationError,
    DecisionNeededError,
    OwnershipError,
    RecoveryError,
)
from airflow_eos.kinds.mysql.participant import MySqlParticipant
from airflow_eos.kinds.sql.keys import KeysOfName
from airflow_eos.kinds.sql.participant import LedgerState
from tests.unit.core.recovery.facts_of import (
    NONCE,
    checkpoint,
    commit,
    facts,
    prepared,
    sealed,
    still_open,
    what_became,
)

ONE, TWO = prepared(0, content="a"), prepared(1, content="b", rows=30)
AGAIN = prepared(0, epoch=1, content="a")
PATH = "eos/rulings/batches/5.json"


@pytest.fixture
def store(tmp_path):
    return CheckpointStore.open(tmp_path)


def test_what_no_reader_is_known_to_have_is_given_up():
    found = shortfall(
        facts(
            decisions=(sealed(1), commit(ONE, TWO, attempt=2), commit(AGAIN, attempt=3)),
            outcomes=what_became(committed=[TWO], aborted=[ONE], unknown=[AGAIN]),
        ),
        5,
    )
    assert (found.promised, found.delivered, found.rows, found.untold) == (130, 30, 100, 100)
    assert found.promise == NONCE
    assert [outcome.name for _, outcome in found.works] == ["ABORTED", "COMMITTED", "UNKNOWN"]


def of_both(**became: Any) -> dict[str, Any]:
    return {"decisions": (commit(ONE, TWO),), "outcomes": what_became(**became)}


@pytest.mark.parametrize(
    ("world", "batch", "kind", "says"),
    [
        ({}, 4, ConfigurationError, "batch 5 is"),
        ({"checkpoint": checkpoint(5, 5)}, 5, ConfigurationError, "none is"),
        ({"decisions": (sealed(),)}, 5, ConfigurationError, "never promised"),
        (of_both(committed=[ONE, TWO]), 5, ConfigurationError, "Nothing is missing"),
        (
            of_both(aborted=[ONE]) | {"listed": (still_open(TWO),)},
            5,
            RecoveryError,
            "airflow-eos recover /checkpoint",
        ),
        (of_both(aborted=[ONE], undecided=[TWO]), 5, RecoveryError, "30 rows"),
    ],
    ids=["another", "complete", "not-promised", "whole", "listed-as-open", "open-by-the-log"],
)
def test_nothing_else_can_be_accepted(world: Any, batch: int, kind: Any, says: str):
    with pytest.raises(kind, match=says):
        shortfall(facts(**world), batch)


def test_beside_a_driver_that_lives_nobody_is_told_to_start_the_app():
    """Nobody has looked whether one does: what to do next is what the status shows."""
    with pytest.raises(ConfigurationError, match="Run `airflow-eos status") as error:
        shortfall(facts(decisions=()), 99)
    assert "start the app" not in str(error.value)


def test_the_first_acceptance_stands(store):
    assert read_acceptance(store, 5, NONCE) is None
    first = accept(store, 5, NONCE, missing={"sink": 10}, ruled_by="ann")

    assert accept(store, 5, NONCE, missing={"sink": 99}, ruled_by="bob") == first
    assert read_acceptance(store, 5, NONCE) == first


def test_an_acceptance_is_about_one_promise_only(store):
    accept(store, 5, NONCE, missing={"sink": 10}, ruled_by="ann")
    store.put("eos/rulings/batches/6.json", store.get(PATH))

    for batch, promise in ((6, NONCE), (5, "f" * 32)):
        with pytest.raises(DecisionNeededError, match="copied"):
            read_acceptance(store, batch, promise)
    with pytest.raises(DecisionNeededError, match="copied"):
        accept(store, 5, "f" * 32, missing={"sink": 10}, ruled_by="ann")


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b'{"format_version":1}'])
def test_a_garbled_acceptance_gives_nothing_up(store, data):
    store.put(PATH, data)

    with pytest.raises(CheckpointFormatError):
        read_acceptance(store, 5, NONCE)


def test_what_its_system_refuses_for_ever_is_given_up_only_when_asked_for():
    """A duplicate key of staged rows, a callable that raises: decided, and never to be applied."""
    world = facts(
        decisions=(commit(ONE, TWO),),
        listed=(still_open(TWO),),
        outcomes=what_became(committed=[ONE]),
    )
    with pytest.raises(RecoveryError, match="--give-up-open"):
        shortfall(world, 5)
    found = shortfall(world, 5, open_too=True)
    assert (found.rows, found.given_up) == (30, (TWO.identity,))


def test_what_is_open_in_part_and_told_by_nobody_is_not_sent_to_a_recovery_again():
    world = facts(
        decisions=(commit(ONE, TWO),),
        listed=(still_open(TWO),),
        outcomes=what_became(committed=[ONE], unknown=[TWO]),
    )
    found = shortfall(world, 5)
    assert (found.rows, found.untold, found.given_up) == (30, 30, ())


def test_an_acceptance_that_gives_up_less_is_not_taken_for_one_that_gives_up_more(store):
    accept(store, 5, NONCE, missing={"sink": 10}, ruled_by="ann", given_up=[ONE.identity])

    assert accept(store, 5, NONCE, missing={"sink": 10}, ruled_by="bob").ruled_by == "ann"
    with pytest.raises(DecisionNeededError, match="made by ann"):
        accept(
            store,
            5,
            NONCE,
            missing={"sink": 40},
            ruled_by="bob",
            given_up=[ONE.identity, TWO.identity],
        )


def test_what_one_output_may_lack_excuses_no_other(store):
    """The rows that a person gave up were one's; later the other's database loses its own."""
    orders, totals = (
        msgspec.structs.replace(each, participant=name, detail={"generation": 0})
        for each, name in ((ONE, "orders"), (TWO, "totals"))
    )
    world = facts(
        decisions=(commit(orders, totals),),
        outcomes=what_became(committed=[totals], aborted=[orders]),
    )
    found = shortfall(world, 5)
    assert (found.missing, found.rows, found.delivered) == ({"orders": 100}, 100, 30)
    accept(store, 5, found.promise, missing=found.missing, ruled_by="ann")
    promise = Promise.of([commit(orders, totals)])
    assert promise is not None
    said = rulings_on_promise(store, promise)
    assert said.missing_rows == {"orders": 100}
    for name, held in (("orders", True), ("totals", False)):
        session = MagicMock(run=lambda *_: LedgerState(floor=-1, open=set(), there=set()))
        database = MySqlParticipant(session, KeysOfName("app"), name=name, instance_id="m")
        with nullcontext() if held else pytest.raises(OwnershipError, match="30 of its rows") as no:
            database.require_settled(promise, said)
    [remedy] = no.value.remedies
    assert "of the batch in flight" in remedy.change, "its witnesses may have gone with the others"
    assert "come twice" in remedy.costs


def reading(start: Any = {"in": {0: 10}}, end: Any = {"in": {0: 30, 1: 5}}, **how: Any) -> Any:  # noqa: B006
    """Batch 5 is in flight and reads this; partition 1 is new."""
    return replace(checkpoint(**how), sources=(SourceProgress(0, "kafka", start, end, "-"),))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("in:0:12-14", "in:0:12-14"),
        ("in:0:5-14", "in:0:10-14"),  # the record batch began in what is settled
        ("in:0:29-40", "in:0:29-40"),  # and ends in what the next batch reads
        ("in:1:0-4", "in:1:0-4"),
    ],
)
def test_offsets_of_the_batch_in_flight_can_be_stepped_over(wanted, found):
    assert str(skippable("/c", reading(), None, InputRange.of_text(wanted))) == found


@pytest.mark.parametrize(
    ("wanted", "state", "says"),
    [
        ("in:0:12-14", reading(offsets=5, commits=5), "No batch is in flight"),
        ("other:0:12-14", reading(), "does not read partition 0 of topic 'other'.*in:0, in:1"),
        ("in:2:12-14", reading(), "does not read partition 2"),
        ("in:0:0-9", reading(), "is settled.*offsets 10 to 29"),
        ("in:0:30-31", reading(), "is not read yet"),
        ("in:0:12-14", reading(start=None), "begins is not known"),
    ],
    ids=["none-in-flight", "topic", "partition", "settled", "later", "not-known"],
)
def test_no_other_offsets_are_stepped_over(wanted, state, says):
    with pytest.raises((ConfigurationError, RecoveryError), match=says) as refused:
        skippable("/c", state, None, InputRange.of_text(wanted))
    assert "Nothing is given up" in str(refused.value)


def test_offsets_whose_rows_are_promised_are_not_stepped_over():
    with pytest.raises(RecoveryError, match="is promised"):
        skippable("/c", reading(), Promise.of([commit(ONE)]), InputRange.of_text("in:0:12-14"))


@pytest.mark.parametrize("text", ["", "in:0:5", "in:0:9-5", "in:-1:0-1", "a/b:0:0-1", "in:0:0-1 "])
def test_what_is_no_range_of_the_input_is_refused(text):
    with pytest.raises(ConfigurationError, match="TOPIC:PARTITION:FIRST-LAST"):
        InputRange.of_text(text)
