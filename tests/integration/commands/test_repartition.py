"""``airflow-eos repartition`` as a process of its own: killed at each step, gone on with, undone.

A kill is played by what it leaves: Spark writes ``offsets/N``, the state, then ``commits/N``.
"""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.repartition import at_work
from airflow_eos.errors import ContinuityError
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.recovery import plan_recovery
from tests.integration.commands.conftest import Command
from tests.integration.hazards.spark_job import Job
from tests.integration.policy.test_state_store import configured, count

MASTER = ("--master", "local[2]")
CHANGES = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


def counted(job: Job, *, changes: bool = True) -> Path:
    """A pipeline of counts that has ended; the session's two partitions."""
    job.spark.conf.set(CHANGES, str(changes).lower())
    for _ in range(2):
        job.feed(100)
        count(job)
    return Path(job.checkpoint)


def killed(folder: Path, step: str) -> int:
    """Take away what the step before which it was killed would have written; return the batch."""
    batch = max(int(each.name) for each in folder.glob("offsets/[0-9]*"))
    (folder / f"commits/{batch}").unlink()
    written = sorted(folder.glob(f"state/0/*/{batch + 1}.*"))
    assert len(written) == 5
    for each in {"planned": written, "written in part": written[3:], "written": []}[step]:
        each.unlink()
        each.with_name(f".{each.name}.crc").unlink(missing_ok=True)
    (folder / f"commits/.{batch}.crc").unlink(missing_ok=True)
    return batch


STEPS = ("planned", "written in part", "written")


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        (True, ("written in part",)),
        pytest.param(True, STEPS, marks=pytest.mark.long),
        pytest.param(False, STEPS, marks=pytest.mark.proof),
    ],
    ids=["in part", "changes", "no changes"],
)
def test_the_command_killed_at_each_step_is_gone_on_with_or_undone(
    job: Job, command: Command, changes: bool, steps: tuple[str, ...]
) -> None:
    """Followed is what the refused start advises, which every other look says as well."""
    with configured(job):
        folder = counted(job, changes=changes)
        command("repartition", str(folder), "--partitions", "5", *MASTER)
        command("repartition", str(folder), "--partitions", "5", *MASTER, status=2)  # it has them
        whole = folder.with_name("repartitioned")
        shutil.copytree(folder, whole)
        for step in steps:
            shutil.rmtree(folder)
            shutil.copytree(whole, folder)
            killed(folder, step)
            with pytest.raises(ContinuityError, match="was not finished") as refused:
                count(job)
            go_on, undo = (each.commands[0] for each in refused.value.remedies)
            settings = KafkaSettings.from_librdkafka({"bootstrap.servers": job.bootstrap})
            planned = plan_recovery(str(folder), settings)
            assert [each.commands[0] for each in planned.remedies] == [go_on, undo]
            told = command("plan", str(folder), "-b", job.bootstrap, status=4)
            assert "--undo" in told.stdout
            assert "--undo" in command("doctor", str(folder), status=1).stdout
            command("repartition", str(folder), "--partitions", "7", *MASTER, status=2)
            # To go on takes another Spark: with the other proofs.
            again = undo if changes or step != "written in part" else go_on
            command(*shlex.split(again)[1:], *(MASTER if again == go_on else ()))
        job.feed(100)
        count(job)
    job.assert_counts()
    assert not list(folder.glob("state/0/4/[0-9]*")), "five partitions, though undone"


def test_a_store_that_spark_does_not_repartition_is_refused_before_a_file_is_written(
    job: Job, command: Command
) -> None:
    job.feed(100)
    count(job)
    before = sorted(map(str, Path(job.checkpoint).rglob("*")))
    refused = command("repartition", job.checkpoint, "--partitions", "5", status=2)
    assert "HDFSBackedStateStoreProvider" in refused.stderr
    assert sorted(map(str, Path(job.checkpoint).rglob("*"))) == before
    # As Spark's own call leaves it, made by somebody who did not ask us.
    entry = Path(job.checkpoint, "offsets/0").read_text()
    shuffles = '"spark.sql.shuffle.partitions":'
    assert f'{shuffles}"2"' in entry
    newest = max(int(each.name) for each in Path(job.checkpoint, "offsets").glob("[0-9]*"))
    changed = Path(job.checkpoint, f"offsets/{newest}").read_text()
    Path(job.checkpoint, f"offsets/{newest + 1}").write_text(
        changed.replace(f'{shuffles}"2"', f'{shuffles}"5"')
    )
    with pytest.raises(ContinuityError, match="was not finished") as left:
        count(job)
    [undo] = left.value.remedies
    command(*shlex.split(undo.commands[0])[1:])
    job.feed(100)
    count(job)
    job.assert_counts()


def test_nobody_undoes_what_another_process_is_at(job: Job, command: Command) -> None:
    with configured(job):
        folder = counted(job)
    store = CheckpointStore.open(folder)
    with at_work(store):
        refused = command("repartition", str(folder), "--undo", "--json", status=2)
    assert json.loads(refused.stdout)["error"] == "PipelineAliveError"
    assert json.loads(command("repartition", str(folder), "--undo", "--json").stdout)["undone"] is (
        False
    )
    assert store.get("eos/repartition.json") is None
