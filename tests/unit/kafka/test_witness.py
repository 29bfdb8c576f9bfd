"""What a second witness tells of a checkpoint's newest promise, where the first one is gone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.client.offsets import EARLIEST, LATEST
from airflow_eos.kafka.transactions import witness
from airflow_eos.kafka.transactions.identity import (
    OffsetRange,
    PreparedTransaction,
    TransactionIdentity,
)
from airflow_eos.kafka.transactions.witness import Sight, later_than, sight_of

NAMED = TransactionIdentity("etl-eos-0-0", 7, 5)
PROMISED = PreparedTransaction("etl-eos-0-0", 7, 5, (OffsetRange("t", 0, 10, 19),), 10, "", 0, 1)


def state(what: str, producer: int = 7, epoch: int = 5, name: str = "etl-eos-0-0") -> Any:
    return SimpleNamespace(
        transactional_id=name, transaction_state=what, producer_id=producer, producer_epoch=epoch
    )


@pytest.mark.parametrize(
    ("told", "sight"),
    [
        (state("CompleteCommit"), Sight.AGREES),
        (state("PrepareCommit", epoch=6), Sight.AGREES),
        (state("CompleteCommit", epoch=7), Sight.LATER),
        (state("CompleteCommit", producer=8, epoch=0), Sight.LATER),
        (state("Ongoing"), Sight.AGREES),
        (state("CompleteAbort", epoch=6), Sight.AGREES),
        (state("CompleteAbort", epoch=7), Sight.SILENT),
        (state("Ongoing", epoch=7), Sight.SILENT),
        (state("Empty", epoch=7), Sight.SILENT),
    ],
)
def test_a_coordinator_tells_of_commits_alone(told: Any, sight: Sight) -> None:
    assert sight_of(told, NAMED, (0, 1)) is sight


def test_where_the_end_of_a_transaction_adds_no_epoch_the_next_one_is_another() -> None:
    assert sight_of(state("CompleteCommit", epoch=6), NAMED, (0,)) is Sight.LATER


def test_an_id_that_was_not_promised_or_whose_epochs_were_used_up_says_nothing() -> None:
    assert sight_of(state("CompleteCommit"), None, (0, 1)) is Sight.SILENT
    last = TransactionIdentity("etl-eos-0-0", 7, 2**15 - 2)
    assert sight_of(state("CompleteCommit", producer=8, epoch=0), last, (0, 1)) is Sight.SILENT


@pytest.mark.parametrize(
    ("first", "until", "batches", "says"),
    [
        (0, 21, [], ""),
        (0, 40, [(9, 0)], ""),
        (0, 40, [(9, 0), (7, 6)], "producer 7, epoch 6"),
        (30, 40, [], None),
        (0, 15, [], None),
    ],
    ids=["nothing behind it", "another program's", "ours", "past retention", "cut off"],
)
def test_the_log_behind_the_promised_rows_tells_where_no_coordinator_does(
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    until: int,
    batches: list[tuple[int, int]],
    says: str | None,
) -> None:
    at = {EARLIEST: first, LATEST: until}
    found = [SimpleNamespace(producer_id=p, producer_epoch=e, base_offset=22) for p, e in batches]
    monkeypatch.setattr(witness, "listed_ids", lambda *_: {"etl-eos-0-0"})
    monkeypatch.setattr(witness, "described", lambda *_: [state("CompleteAbort", epoch=8)])
    monkeypatch.setattr(witness, "raised_by_a_commit", lambda _: (0, 1))
    monkeypatch.setattr(witness, "positions", lambda _, places, when: {places[0]: at[when]})
    monkeypatch.setattr(witness, "read_span", lambda *_, **__: [found])
    cluster = SimpleNamespace(
        coordinators=lambda *_, **__: {}, require_coordinators=lambda **_: None
    )
    wire: Any = SimpleNamespace(cluster=cluster)
    if says is None:
        with pytest.raises(KafkaUnavailableError, match="is not known"):
            later_than(wire, "etl", [PROMISED])
        return
    told = later_than(wire, "etl", [PROMISED])
    assert says in told
    assert bool(says) is bool(told)
