"""Rows read back for a replay: what is overlooked here would be delivered twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_eos.errors import KafkaUnavailableError, TransactionError
from airflow_eos.kafka.transactions.identity import OffsetRange, PreparedTransaction
from airflow_eos.kafka.transactions.outcomes import delivered_rows
from tests.unit.kafka.test_reading import ROW, THROTTLED, Scripted, answer, at, of

DELIVERED = PreparedTransaction("t-0-0", 7, 0, (OffsetRange("orders", 0, 0, 2),), 3, "", 0, 60_000)
WRITTEN = of(7, ROW, ROW, ROW)


def read(wire: Any, **how: Any) -> int:
    return sum(batch.num_rows for batch in delivered_rows(wire, [DELIVERED], **how))


@pytest.mark.parametrize("withheld", [THROTTLED, answer(elsewhere=2)], ids=["quota", "elsewhere"])
def test_an_answer_that_a_quota_has_emptied_is_asked_for_again(withheld: SimpleNamespace) -> None:
    assert read(Scripted(withheld, withheld, answer(WRITTEN))) == 3
    with pytest.raises(KafkaUnavailableError, match="gives no rows from offset 0"):
        read(Scripted(withheld), deadline_s=0.05)


@pytest.mark.parametrize("place", [-1, 50], ids=["a row", "whose it is"])
def test_a_flipped_bit_is_an_error_and_no_row_that_was_not_delivered(place: int) -> None:
    garbled = bytearray(WRITTEN)
    garbled[place] ^= 1
    with pytest.raises(TransactionError, match=r"offset 0 of partition 0 .* is garbled: its CRC"):
        read(Scripted(answer(bytes(garbled))))


def test_a_row_that_cannot_be_read_back_is_an_error_and_not_taken_for_undelivered() -> None:
    """Compaction took the middle one of three: written again, the replay would have it twice."""
    gap = at(2, of(7, ROW))
    with pytest.raises(TransactionError, match="delivered 3 rows, but only 2 can be read back"):
        read(Scripted(answer(of(7, ROW)), answer(gap)))


def test_rows_of_another_producer_in_the_range_do_not_make_up_for_ours() -> None:
    with pytest.raises(TransactionError, match="delivered 3 rows, but only 2 can be read back"):
        read(Scripted(answer(of(7, ROW, ROW)), answer(at(2, of(8, ROW)))))
