"""A driver's authority where no Spark plans: real terms and a real offset log, on any store."""

from __future__ import annotations

from typing import Any

from airflow_eos.checkpoint import CheckpointStore, Decision, DecisionLog, OffsetLog, take_term
from airflow_eos.delivery.batch import Authority

OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7}\n{"in":{"0":1}}'


class ListOfNotes:
    """See :class:`airflow_eos.delivery.batch.ExternalFencing`."""

    def __init__(self) -> None:
        self.noted: list[Decision] = []

    def note(self, decision: Decision, _owner: Any) -> None:
        self.noted.append(decision)


def authority_of(store: CheckpointStore, decisions: DecisionLog, notes: Any = None) -> Authority:
    """Take the next term; a batch is planned when it is first begun, as Spark does just before."""

    def evaluated_at(batch_id: int) -> int:
        if store.get(f"offsets/{batch_id}") is None:
            store.put(f"offsets/{batch_id}", OFFSETS.encode())
        return 7

    return Authority(
        take_term(store, taken_by="test"),
        OffsetLog(store, decisions),
        notes or ListOfNotes(),
        evaluated_at=evaluated_at,
    )
