"""Topics that others write to as well: a cut is of this pipeline's rows."""

from __future__ import annotations

from airflow_eos import cuts
from airflow_eos.recovery import execute_recovery
from tests.integration.recovery.conftest import BATCH, DeadPipeline
from tests.support.topics import produce


def read(dead: DeadPipeline, cut: cuts.Cut) -> list[str]:
    kafka = {"bootstrap.servers": dead.settings.bootstrap_servers}
    found = [value for each in cuts.rows(cut, "sink", kafka) for value in each["value"].to_pylist()]
    return [value.decode() for value in found]


def recovered(dead: DeadPipeline) -> cuts.Cut:
    execute_recovery(
        dead.store.location, {"bootstrap.servers": dead.settings.bootstrap_servers}, force=True
    ).require_complete()
    return cuts.latest(dead.store.location)


def test_rows_of_a_foreign_writer_change_no_cut_that_was_taken(dead: DeadPipeline) -> None:
    """What it wrote before is in the first cut, since that looked; what it writes later is not."""
    servers = dead.settings.bootstrap_servers
    produce(servers, dead.topic, [("", "theirs, before")])
    dead.decided(dead.write(0, ["ours"]))
    cut = recovered(dead)
    assert cut.batch_id == BATCH
    assert read(dead, cut) == ["theirs, before", "ours"]
    produce(servers, dead.topic, [("", "theirs, after")])
    open_now = dead.write(9, ["of a later batch"], prefix="somebody-else")
    assert read(dead, cut) == ["theirs, before", "ours"], "also while it holds its readers up"
    dead.end(open_now, commit=True)
    assert read(dead, cut) == ["theirs, before", "ours"]
    assert cuts.latest(dead.store.location) == cut


def test_a_recovery_that_leaves_rows_to_the_app_writes_no_cut(dead: DeadPipeline) -> None:
    """Some of the batch is committed; what a timeout took away, the app replays."""
    lost, kept = dead.write(0, ["lost"]), dead.write(1, ["kept"])
    dead.end(lost, commit=False)
    dead.decided(lost, kept)
    execute_recovery(
        dead.store.location, {"bootstrap.servers": dead.settings.bootstrap_servers}, force=True
    )
    assert not dead.store.list("eos/cuts")
