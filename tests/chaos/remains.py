"""What a history leaves: recovery asked once more, the checkpoint as data, the topic as read."""

from __future__ import annotations

from tests.chaos.arena import OUT_PARTITIONS
from tests.chaos.person import planned
from tests.chaos.readers import decisions, everything
from tests.chaos.spark_loop import note_logs
from tests.chaos.stage import Stage


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
