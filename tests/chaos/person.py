"""The person whom the product asks where the log no longer tells; here one who knows the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.hanging import end_hanging, find_hanging
from airflow_eos.kafka.transactions.identity import transaction_of
from airflow_eos.recovery import Action, Step, plan_recovery
from tests.chaos.processes import wait_until
from tests.chaos.readers import decisions, identity_of
from tests.support.follow import Person

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

_MARKERS_S = 20.0


def planned(stage: Stage) -> Sequence[Step]:
    """What a recovery of this moment would do."""
    plan = plan_recovery(
        stage.store.location,
        {"bootstrap.servers": stage.arena.bootstrap},
        reach=stage.reach,
        storage_options=stage.arena.where.options,
    )
    return plan.steps


def end_what_a_broker_has_lost(stage: Stage) -> None:
    """Do as an operator does whose readers stand still and nothing is open (docs/recovery.md).

    Only what nobody has committed: what a coordinator's timeout ended while a partition had no
    leader (KAFKA-20734, seed 93000086). What the product ends is the product's to end everywhere.
    """
    if wait_until(lambda: _stable(stage), _MARKERS_S, every_s=0.05):
        return
    with ConnectionPool(
        KafkaSettings.from_librdkafka({"bootstrap.servers": stage.arena.bootstrap})
    ) as wire:
        for each in find_hanging(wire, {stage.topic}, older_than_ms=0):
            if each.committed is False:
                stage.journal.note("hanging", transaction=msgspec.to_builtins(each))
                end_hanging(wire, each, commit=False)


def _stable(stage: Stage) -> bool:
    stable: dict[int, int] = stage.arena.offsets(stage.topic, stable=True)
    end: dict[int, int] = stage.arena.offsets(stage.topic, stable=False)
    return stable == end


def rule_by_what_was_read(stage: Stage) -> None:
    """Rule whatever a plan asks for: a reader that was there before retention has the rows or not.

    Only for the harness: it had its live reader read all before the rows were deleted.
    """
    person = Person(stage.store.location, connection(stage), start=lambda _settings: None)
    promised = {
        identity_of(each): each["written"][0]
        for decision in decisions(stage.folder, stage.store)
        for each in decision["transactions"]
    }
    for step in planned(stage):
        if step.action is Action.ASK and step.work is not None:
            written = promised[identity_of(msgspec.to_builtins(transaction_of(step.work)))]
            was_read = (written["partition"], written["first"]) in stage.live.places
            outcome = "committed" if was_read else "aborted"
            [said] = [r for r in step.remedies if r.commands[0].endswith(f"--assume {outcome}")]
            for command in said.commands:  # to the letter: it may end what else is open, too
                person.run(command)
            stage.journal.note("ruled", work=str(step.work), outcome=outcome)


def connection(stage: Stage) -> list[str]:
    """How each command reaches what the history delivers to."""
    reach = stage.folder / "reach.json"
    reach.write_bytes(msgspec.json.encode(stage.reach or {}))
    options = [f"--storage-option={k}={v}" for k, v in (stage.arena.where.options or {}).items()]
    return ["-b", stage.arena.bootstrap, "--reach", str(reach), *options]
