"""A recording: checkpoints of pipelines that were killed, and the data of the broker they wrote to.

``tests/recorded/record.py`` makes one, with the code of its day; a test opens it with the code of
today, on a real broker that goes on with the recorded data.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from typer.testing import CliRunner

from airflow_eos.cli.app import app
from airflow_eos.local import EmbeddedKafka
from airflow_eos.local.broker import Node, server_properties
from tests.support.pipeline import Pipeline

FACTS = "recording.json"
ARCHIVE = "recording.tar.xz"
BROKER = "broker"
"""The archive's folder with the broker's log folder; each pipeline has one of its name."""

PARTITIONS = 3
ROWS_A_BATCH = 300

# Whenever a recording is opened, its transactions are long overdue and its rows past any
# retention. So the broker looks for overdue transactions once a day, and that is after the test;
# the rest never expires by what these say.
UNHURRIED = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "86400000",
    "transactional.id.expiration.ms": str(2**31 - 1),
    "offsets.retention.minutes": str(2**31 - 1),
    "log.retention.ms": "-1",
    # one partition each: what is recorded stays small
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class Killed(msgspec.Struct, frozen=True):
    """One recorded pipeline: where it was killed, and what that left."""

    name: str
    failpoint: str
    rows_fed: int
    batch: int
    visible_rows: int
    open_transactions: int


class Recording(msgspec.Struct, frozen=True):
    """What a recording is of. ``commit`` is the last one that changed ``airflow_eos`` then."""

    commit: str
    recorded_at: str
    versions: dict[str, str]
    cluster_id: str
    pipelines: tuple[Killed, ...]


class RecordedKafka(EmbeddedKafka):
    """A broker on a copy of recorded data: the same cluster, on other ports.

    Args:
        cluster_id: the recorded one.
        log: the recorded log folder; it becomes the broker's own.
    """

    def __init__(self, cluster_id: str, log: Path) -> None:
        super().__init__(UNHURRIED)
        self.cluster_id = cluster_id
        self._log = log

    def _format(self, nodes: Sequence[Node]) -> None:
        """Nothing is formatted: the data is there. Where it lies and the ports are new."""
        [node] = nodes
        node.data.mkdir(parents=True)
        node.logs.mkdir(parents=True)
        text = server_properties(node, nodes, {}, UNHURRIED | {"log.dirs": str(self._log)})
        (node.data / "server.properties").write_text(text, encoding="utf-8")


@dataclass
class RecordedPipeline(Pipeline):
    """A pipeline whose topics, rows and checkpoint were recorded."""

    killed: Killed = field(kw_only=True)

    def __post_init__(self) -> None:
        self.expected = []
        self._next = 0
        self.expect(self.killed.rows_fed)


@contextmanager
def opened(folder: Path, scratch: Path) -> Iterator[dict[str, RecordedPipeline]]:
    """The pipelines of a recording by name, on a running broker; ``scratch`` holds the copy."""
    recording = msgspec.json.decode((folder / FACTS).read_bytes(), type=Recording)
    with tarfile.open(folder / ARCHIVE) as archive:
        archive.extractall(scratch, filter="data")
    with RecordedKafka(recording.cluster_id, scratch / BROKER) as broker:
        yield {
            killed.name: RecordedPipeline(
                broker,
                scratch / killed.name,
                name=killed.name,
                partitions=PARTITIONS,
                settings={"max_offsets_per_trigger": ROWS_A_BATCH},
                killed=killed,
            )
            for killed in recording.pipelines
        }


def moved_on_purpose(pipeline: Pipeline) -> None:
    """Do what the product asks of an operator who moves a checkpoint."""
    told = ["disown", pipeline.name, "-b", pipeline.bootstrap, "--moved", "--yes"]
    answer = CliRunner().invoke(app, told)
    assert answer.exit_code == 0, answer.output
