"""What comes after a driver: recoveries, retention that takes its rows, what a history leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.arena import OUT_PARTITIONS
from tests.chaos.driver import recover
from tests.chaos.person import planned
from tests.chaos.processes import Forked
from tests.chaos.readers import decisions, everything
from tests.chaos.spark_loop import note_logs

if TYPE_CHECKING:
    from tests.chaos.scenario import Incident
    from tests.chaos.stage import Stage


def recover_at_once(stage: Stage, number: int, incident: Incident) -> None:
    """Run as many recoveries at once as the incident says."""
    if stage.store.head("eos/pipeline.json") is None:
        return  # killed before it claimed the checkpoint: recovery would refuse, rightly
    running = [
        stage.start(
            stage.settings(
                f"recovery-{number}-{k}",
                incident,
                failpoints="" if k else incident.recovery_failpoints,
            ),
            lambda settings: Forked(recover, settings),
        )
        for k in range(incident.recoveries)
    ]
    for process in running:
        process.wait(300)


def pass_retention(stage: Stage) -> None:
    """All that a read_committed reader can have by now is read, and then deleted."""
    ends = stage.let_live_reader_catch_up()
    stage.arena.delete_rows(stage.topic, ends)
    stage.journal.note("deleted", ends=ends)


def empty(stage: Stage, incident: Incident) -> None:
    """What delayed allocation leaves of files that nobody has synced: their names. Or nothing."""
    for name in incident.emptied:
        path = name
        if name != "metadata":
            there = [int(each.name) for each in stage.store.list(name) if each.name.isdigit()]
            path = f"{name}/{max(there, default=-1)}"
        if stage.store.head(path) is not None:
            if incident.gone:
                stage.store.delete([path])
            else:
                stage.store.put(path, b"")
            stage.journal.note("emptied", path=path, gone=incident.gone)


# --- remains --------------------------------------------------------------------------------------
# What a history leaves: recovery asked once more, the checkpoint as data, the topic as read.


def write_down(stage: Stage, *, caught_up: bool) -> None:
    """Write down what is left: recovery once more, the checkpoint, the topic."""
    again = planned(stage)
    at_rest = stage.arena.at_rest(stage.topic, stage.name, 30, stage.elsewhere.open)
    rows = everything(
        stage.arena.bootstrap, stage.topic, OUT_PARTITIONS, isolation=stage.scenario.isolation
    )
    stage.journal.note("saw", reader="final", rows=rows)
    for output, held in stage.elsewhere.everything().items():
        stage.journal.note("there", output=output, reader="final", rows=held)
    note_logs(stage.store, stage.journal)
    for each in decisions(stage.folder, stage.store):
        stage.journal.note("decision", **{**each, "batch": each["batch_id"]})
    stage.journal.note("final", caught_up=caught_up, again=len(again), **at_rest)
