"""The person whom the product asks where the log no longer tells; here one who knows the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_eos.checkpoint import CheckpointStore
from airflow_eos.checkpoint.rulings import resolve
from airflow_eos.kafka.transactions.work import transaction_of
from airflow_eos.protocol.work import Outcome
from airflow_eos.recovery import Action, plan_recovery
from tests.chaos.readers import decisions, identity_of

if TYPE_CHECKING:
    from tests.chaos.stage import Stage


def rule_by_what_was_read(stage: Stage) -> None:
    """Rule whatever a plan asks for: a reader that was there before retention has the rows or not.

    Only for the harness: it had its live reader read all before the rows were deleted.
    """
    checkpoint = stage.folder / "checkpoint"
    promised = {
        identity_of(each): each["written"][0]
        for decision in decisions(stage.folder)
        for each in decision["transactions"]
    }
    store = CheckpointStore.open(str(checkpoint))
    kafka = {"bootstrap.servers": stage.arena.bootstrap}
    for step in plan_recovery(str(checkpoint), kafka, reach=stage.reach).steps:
        if step.action is Action.ASK and step.work is not None:
            written = promised[identity_of(msgspec.to_builtins(transaction_of(step.work)))]
            was_read = (written["partition"], written["first"]) in stage.live.places
            outcome = Outcome.COMMITTED if was_read else Outcome.ABORTED
            resolve(store, step.work, outcome, ruled_by="the harness")
            stage.journal.note("ruled", work=str(step.work), outcome=outcome.value)
