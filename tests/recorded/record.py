"""Record checkpoints of this day's format: ``python -m tests.recorded.record FOLDER``.

Real Spark and a real broker, by the code of the working tree: two pipelines deliver some batches
and are killed (SIGKILL), one between two commits of a decided batch, one with a batch prepared and
undecided. The broker is stopped cleanly, so that its files are small; its log folder and both
checkpoints become one archive. What was left is written beside it, for whoever opens it.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import msgspec

from airflow_eos.core.checkpoint import CheckpointStore, read_state
from airflow_eos.local import EmbeddedKafka
from airflow_eos.local.jars import KAFKA_VERSION
from tests.support.pipeline import KILLED, Pipeline
from tests.support.recorded import (
    ARCHIVE,
    BROKER,
    FACTS,
    PARTITIONS,
    ROWS_A_BATCH,
    UNHURRIED,
    Killed,
    Recording,
)

ROOT = Path(__file__).parents[2]
ROWS_FED = 5 * ROWS_A_BATCH
# A failpoint counts the batches: with both, two batches are whole before the killed one.
PLACES = {"killed-settling": "settled-some", "killed-undecided": "prepared"}


def main() -> None:
    target = Path(sys.argv[1])
    commit = _commit_of_the_product()
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="airflow-eos-recording-") as name:
        scratch = Path(name)
        with EmbeddedKafka(UNHURRIED) as broker:
            pipelines = tuple(
                _killed(broker, scratch / name, failpoint) for name, failpoint in PLACES.items()
            )
            broker.stop()
            [process] = broker._processes.values()
            with tarfile.open(target / ARCHIVE, "w:xz", preset=9) as archive:
                archive.add(process.node.data / "log", BROKER)
                for each in pipelines:
                    archive.add(scratch / each.name / "checkpoint", f"{each.name}/checkpoint")
            recording = Recording(
                commit=commit,
                recorded_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                versions={"kafka": KAFKA_VERSION, "pyspark": version("pyspark")},
                cluster_id=broker.cluster_id,
                pipelines=pipelines,
            )
    facts = msgspec.json.format(msgspec.json.encode(recording), indent=2)
    (target / FACTS).write_bytes(facts + b"\n")
    size = (target / ARCHIVE).stat().st_size
    sys.stdout.write(f"{facts.decode()}\n{target / ARCHIVE}: {size} bytes\n")


def _killed(broker: EmbeddedKafka, folder: Path, failpoint: str) -> Killed:
    pipeline = Pipeline(
        broker,
        folder,
        name=folder.name,
        partitions=PARTITIONS,
        settings={"max_offsets_per_trigger": ROWS_A_BATCH},
    )
    pipeline.feed(ROWS_FED)
    pipeline.run(expect=KILLED, failpoints=f"{failpoint}=kill@3")
    batch = read_state(CheckpointStore.open(pipeline.checkpoint)).in_flight
    assert batch is not None, "no batch is in flight"
    return Killed(
        name=pipeline.name,
        failpoint=failpoint,
        rows_fed=ROWS_FED,
        batch=batch,
        visible_rows=len(pipeline.visible()),
        open_transactions=len(pipeline.open_transactions()),
    )


def _commit_of_the_product() -> str:
    """The last commit that changed it; refused where the working tree is something else."""
    changed = _git("status", "--porcelain", "--", "airflow_eos")
    if changed:
        raise SystemExit(f"airflow_eos is not as committed:\n{changed}")
    return _git("log", "-1", "--format=%H", "--", "airflow_eos")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
