"""An optimizer and its clean-up between any two steps of a settlement: decided rows are there once.

With the cleaners' defaults: what takes a promised file early is in ``test_delta`` and its like.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.kinds.lake import participant, upsert
from tests.integration.lake.kinds import KINDS
from tests.integration.lake.stage import Stage

STEPS = ("noted", "checked", "decided", "looked", "rewritten", "settled-some", "settled")


def optimize_delta(stage: Stage) -> None:
    """Compact, write a checkpoint, forget the log before it, and VACUUM."""
    table = DeltaTable(stage.table)
    table.optimize.compact()
    table.create_checkpoint()
    for log in (stage.table / "_delta_log").glob("*.json"):
        if int(log.stem) < table.version():
            log.unlink()
    DeltaTable(stage.table).vacuum(dry_run=False)


def optimize_iceberg(stage: Stage) -> None:
    """Replace all files by one, and expire all former snapshots."""
    kind: Any = stage.kind
    with closing(kind.catalog(stage.table)) as catalog:
        table = catalog.load_table(kind.identifier(stage.table))
        table.overwrite(table.scan().to_arrow())
        newest = table.current_snapshot().snapshot_id
        old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != newest]
        table.maintenance.expire_snapshots().by_ids(old).commit()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["delta", "delta-upsert", "iceberg", "iceberg-upsert"])
def test_an_optimizer_at_any_step_leaves_the_rows_there_once(
    name: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stage = Stage(KINDS[name], tmp_path).made()
    optimize: Callable[[Stage], None]
    optimize = optimize_delta if name.startswith("delta") else optimize_iceberg
    met: list[str] = []

    def reached(at: str) -> None:
        if at == step and not met:
            met.append(at)
            optimize(stage)

    settle, works = stage.participant(), [stage.prepare(1, 2)]
    stage.decide(*works)
    assert settle.commit(works) == {works[0].identity: Outcome.COMMITTED}
    for module in (participant, upsert):
        monkeypatch.setattr(module, "failpoint", reached)
    works = [stage.prepare(1, 3)]
    reached("noted")
    settle.require_decidable(works)
    reached("checked")
    stage.decide(*works, batch=1)
    reached("decided")
    assert settle.commit(works) == {works[0].identity: Outcome.COMMITTED}
    reached("settled")
    assert stage.participant().commit(works) == {works[0].identity: Outcome.COMMITTED}
    assert stage.participant().abort([works[0].identity]) == {works[0].identity: False}
    assert stage.values() == {1: 1 if "upsert" in name else 2, 2: 1, 3: 1}
    assert met == ([] if step == "rewritten" and "upsert" not in name else [step])
    assert stage.noted() == set()
