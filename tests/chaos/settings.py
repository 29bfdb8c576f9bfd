"""What a driver or a recovery is told as it is started, and what may end it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.errors import (
    CheckpointError,
    DeliveryError,
    FencedError,
    KafkaUnavailableError,
    PromiseLostError,
    RecoveryError,
    StoreError,
    SupersededError,
)
from tests.chaos.spark_data import SparkError

KAFKA, POSTGRES, FILES = "kafka", "postgres", "files"
KINDS = (KAFKA, POSTGRES, FILES)
SPARK, ARROW = "spark", "arrow"
SOURCES = (SPARK, ARROW)
"""What reads the input: Spark's Kafka source, or the tasks themselves."""

PLACES = ("local", "moto", "hdfs")
"""Where checkpoints may be; see ``tests.support.stores``."""

ALONE = (KAFKA,)
"""Where the rows of a history go, in one decision."""

EXPECTED = (
    SparkError,
    SupersededError,
    PromiseLostError,
    FencedError,
    KafkaUnavailableError,
    RecoveryError,
    StoreError,
)
"""What may end a process under these faults; the next start goes on. All else is a finding."""

PATIENT_S = 5.0
"""A transaction with a timeout shorter than this may be over before its batch is decided."""

TOO_LATE = "too little is left to promise it"
"""How a batch ends that was slower than its transactions last: not promised, and run again."""

REFUSED = (CheckpointError,)
"""What may end one besides that is to be refused, or whose checkpoint is taken from under it."""


class DriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    folder: str
    place: str
    """Where the checkpoints of the history are: its folder, or a URL."""
    storage_options: dict[str, str] = msgspec.field(default_factory=dict)
    """Of the store of that URL."""
    bootstrap: str
    topic: str
    prefix: str
    kind: str
    source: str = SPARK
    partitions: int
    width: int = 3
    turn: int = 0
    batch_rows: int = 20
    timeout_s: float = 30.0
    failpoints: str = ""
    failpoints_dir: str = ""
    control: str = ""
    task_attempts: int = 3
    retained: int = 100
    gap_s: float = 0.0
    checkpoint_name: str = "checkpoint"
    outputs: tuple[str, ...] = ALONE
    dsn: str = ""
    reach: dict[str, str] = msgspec.field(default_factory=dict)
    may_be_refused: bool = False

    @property
    def input_topic(self) -> str:
        return f"{self.prefix}-in"

    @property
    def checkpoint(self) -> str:
        return f"{self.place}/{self.checkpoint_name}"

    def store(self) -> CheckpointStore:
        """The checkpoint, opened."""
        return CheckpointStore.open(self.checkpoint, storage_options=self.storage_options)

    @property
    def files(self) -> Path:
        """Where the rows go that go to files."""
        return Path(self.folder) / "files"

    def explains(self, error: Exception) -> bool:
        """Whether it may end by this error.

        A machine that stalls makes any batch too late. One that always is, is never live.
        """
        if type(error) is DeliveryError and TOO_LATE in str(error):
            return True
        return isinstance(error, (*EXPECTED, *REFUSED) if self.may_be_refused else EXPECTED)

    @property
    def journal(self) -> Path:
        """Of the history; a pipeline on another checkpoint is no part of it."""
        name = "history" if self.checkpoint_name == "checkpoint" else self.checkpoint_name
        return Path(self.folder) / f"{name}.jsonl"

    @property
    def admitted(self) -> Path:
        """Is there once the driver has passed every refusal and goes to its first batch."""
        return Path(self.failpoints_dir) / "admitted"
