"""Readers of the output, on confluent-kafka: two that run beside the app, and one at the end."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, Message, TopicPartition

from airflow_eos.core.checkpoint import CheckpointStore
from tests.chaos.journal import Journal

Row = tuple[int, int, str, str, str]
_POLL_S = 0.02
_DECISIONS = "eos/decisions"


def consumer(bootstrap: str, topic: str, partitions: int, *, isolation: str) -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 5000,
            "log_level": 0,
        }
    )
    made.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    return made


def row_of(message: Message) -> Row:
    headers = dict(message.headers() or ())
    return (
        message.partition() or 0,
        message.offset() or 0,
        (message.key() or b"").decode(),
        (message.value() or b"").decode(),
        (headers.get("run") or b"").decode(),
    )


def everything(
    bootstrap: str, topic: str, partitions: int, *, isolation: str = "read_committed"
) -> list[Row]:
    """Every row that such a reader gets now."""
    reading = consumer(bootstrap, topic, partitions, isolation=isolation)
    rows: list[Row] = []
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    try:
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"{topic} cannot be read to its end"
            for message in reading.consume(5000, timeout=0.2):
                if not message.error():
                    rows.append(row_of(message))
                elif message.error().name() == "_PARTITION_EOF":
                    ended.add(message.partition() or 0)
    finally:
        reading.close()
    return rows


class LiveReaders:
    """A read_committed and a read_uncommitted reader beside the app; a context manager.

    When the first one gets a row of a run that it has not met, it looks into the checkpoint for
    the decision that names it: none there means that the row was visible too early.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        journal: Journal,
        isolation: str,
        checkpoint: CheckpointStore,
    ) -> None:
        self._journal = journal
        self._checkpoint = checkpoint
        self._folder = journal.file.parent
        self._committed = consumer(bootstrap, topic, partitions, isolation=isolation)
        self._uncommitted = consumer(bootstrap, topic, partitions, isolation="read_uncommitted")
        self._decided_runs: set[str] = set()
        self._named: set[tuple[Any, ...]] = set()
        self._places: set[tuple[int, int]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ends: dict[int, int] = {}
        self._failure: BaseException | None = None
        self.places: set[tuple[int, int]] = set()
        """Partition and offset of every row that the read_committed reader got."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._committed.close()
        self._uncommitted.close()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as error:
            self._failure = error
            raise

    def _read(self) -> None:
        while not self._stop.is_set():
            messages = self._committed.consume(500, timeout=_POLL_S)
            rows = [row_of(m) for m in messages if not m.error()]
            if rows:
                self._look_for_decisions(rows)
                self._journal.note("saw", reader="live", rows=rows)
                self.places |= {row[:2] for row in rows}
            self._ends |= {
                m.partition() or 0: m.offset() or 0
                for m in messages
                if m.error() and m.error().name() == "_PARTITION_EOF"
            }
            messages = self._uncommitted.consume(500, timeout=_POLL_S)
            rows = [row_of(m) for m in messages if not m.error()]
            if rows:
                self._journal.note("saw", reader="uncommitted", rows=rows)

    def has_read(self, ends: dict[int, int]) -> bool:
        """Whether the read_committed reader has got everything below ``ends``, and told."""
        return all(self._ends.get(p, 0) >= end for p, end in ends.items())

    def _look_for_decisions(self, rows: list[Row]) -> None:
        for row in rows:
            run = row[4]
            if run and run not in self._decided_runs:
                if not self._is_decided(run):
                    self._journal.note("early", row=row)
                self._decided_runs.add(run)
            elif not run and not self._is_inside_decided(row):
                self._journal.note("early", row=row)

    def _is_decided(self, run: str) -> bool:
        known = self._folder / "runs" / run
        if not known.exists():
            return False  # its task never came to an end, so nobody can have named it
        identity = identity_of(json.loads(known.read_bytes()))
        return self._look_for(lambda: identity in self._named)

    def _is_inside_decided(self, row: Row) -> bool:
        """Where rows carry no run: whether a decided range covers the offset."""
        place = row[:2]
        return self._look_for(lambda: place in self._places)

    def _look_for(self, found: Callable[[], bool]) -> bool:
        """Read decisions, the newest first, until it is found: a store far away is slow."""
        unread = decisions(self._folder, self._checkpoint)
        while not found():
            decision = next(unread, None)
            if decision is None:
                return False
            for each in decision["transactions"]:
                self._named.add(identity_of(each))
                for span in each["written"]:
                    offsets = range(span["first"], span["last"] + 1)
                    self._places |= {(span["partition"], offset) for offset in offsets}
        return True


def identity_of(transaction: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        transaction[name] for name in ("transactional_id", "producer_id", "producer_epoch")
    )


def decisions(folder: Path, checkpoint: CheckpointStore) -> Iterator[dict[str, Any]]:
    """The decisions of a history as data, whatever was put aside or pruned meanwhile.

    With ``transactions`` and ``elsewhere``, as a history tells of them, in place of ``works``.
    What is kept comes last: who prunes keeps first.
    """
    copies = [CheckpointStore.open(copy) for copy in sorted(folder.glob("checkpoint-*"))]
    known: set[str] = set()
    for decision in chain(decisions_in(checkpoint, *copies), _kept(folder / "kept")):
        if decision["nonce"] not in known:
            known.add(decision["nonce"])
            yield decision


def decisions_in(*checkpoints: CheckpointStore) -> Iterator[dict[str, Any]]:
    """The newest batch of each first; another driver may prune meanwhile."""
    for store in checkpoints:
        for batch in sorted(store.folders(_DECISIONS), key=int, reverse=True):
            for entry in store.list(f"{_DECISIONS}/{batch}"):
                data = store.get(entry.path)
                if data is not None:
                    yield _told(data)


def _kept(folder: Path) -> Iterator[dict[str, Any]]:
    for file in folder.glob("*.json"):
        yield _told(file.read_bytes())


def _told(data: bytes) -> dict[str, Any]:
    decision: dict[str, Any] = json.loads(data)
    works = decision.pop("works")
    decision["transactions"] = [_transaction(work) for work in works if _is_kafkas(work)]
    decision["elsewhere"] = [
        {name: work[name] for name in ("participant", "key", "rows")}
        for work in works
        if not _is_kafkas(work)
    ]
    return decision


def _is_kafkas(work: dict[str, Any]) -> bool:
    return bool(work["kind"] == "kafka")


def _transaction(work: dict[str, Any]) -> dict[str, Any]:
    """As Kafka names it, read without the product's code."""
    transactional_id, producer_id, epoch = work["key"].rsplit("-", 2)
    return {
        "transactional_id": transactional_id,
        "producer_id": int(producer_id),
        "producer_epoch": int(epoch),
        "written": work["detail"]["written"],
        **{name: work[name] for name in ("rows", "fingerprint", "opened_at_ms", "timeout_ms")},
    }
