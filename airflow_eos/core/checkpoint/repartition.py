"""A repartition of the state by Spark: whether one can be made, and one that was not finished.

``StreamingCheckpointManager.repartition`` writes ``offsets/N`` first, which reads nothing and names
another number of partitions; then the state of batch N; then ``commits/N``. Where it ends in
between, no query starts on the checkpoint. Nobody has promised anything of that batch: it can be
gone on with, or put aside with its state.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from airflow_eos.core.checkpoint.backend import OFFSETS, REPARTITION, STATE_STORES
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.mend import Mend
from airflow_eos.core.checkpoint.mending import beside, decided_offsets, mend
from airflow_eos.core.checkpoint.progress import read_state
from airflow_eos.core.checkpoint.spark_log import SparkLog
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.errors import (
    ContinuityError,
    PipelineAliveError,
    RecoveryError,
    Remedy,
    StoreError,
)

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_PARTITIONS = "spark.sql.shuffle.partitions"
_ROCKSDB = "RocksDBStateStoreProvider"
_BEAT_S = 2.0


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A repartition that was begun and not finished: its batch, and the numbers of partitions."""

    batch: int
    partitions: int
    before: int
    provider: str

    def error(self, location: str) -> ContinuityError:
        """Return the error with which a start is refused, and the ways on."""
        go_on = Remedy(
            (f"airflow-eos repartition CHECKPOINT --partitions {self.partitions}",), start=True
        )
        undo = Remedy(
            ("airflow-eos repartition CHECKPOINT --undo",),
            start=True,
            costs=f"the state keeps its {self.before} partitions",
        )
        ways = (go_on, undo) if _is_rocksdb(self.provider) else (undo,)
        return ContinuityError(
            f"{location}: {OFFSETS}/{self.batch} is a repartition of the state to "
            f"{self.partitions} partitions (from {self.before}) that was not finished: no query "
            "starts on it. It reads no rows, and nobody has promised any.",
            *(each.at(location) for each in ways),
        )


def unfinished(store: CheckpointStore) -> Unfinished | None:
    """Return the repartition in flight, by what Spark goes by: another number of partitions."""
    state = read_state(store)
    batch = state.in_flight
    if not batch or decided_offsets(DecisionLog(store), batch) is not None:
        return None
    log = SparkLog(store, state.mends)
    before, found = log.offsets(batch - 1), log.offsets(batch)
    if before is None or found is None:
        return None
    old, new = before.conf.get(_PARTITIONS), found.conf.get(_PARTITIONS)
    if old == new or not (_is_number(old) and _is_number(new)):
        return None
    return Unfinished(batch, int(str(new)), int(str(old)), found.conf.get(_PROVIDER, ""))


def require_finished(store: CheckpointStore) -> None:
    """Refuse a checkpoint whose state is half repartitioned (ContinuityError)."""
    if (found := unfinished(store)) is not None:
        raise found.error(store.location)


def require_possible(store: CheckpointStore, batch: int, partitions: int) -> None:
    """Refuse, before anything is written, what Spark refuses after it has written ``offsets/N``.

    Raises:
        RecoveryError: the query has no state, or in a store whose state Spark does not rewrite.
    """
    entry = SparkLog(store).offsets(batch)
    conf = {} if entry is None else entry.conf
    provider, now = conf.get(_PROVIDER, ""), conf.get(_PARTITIONS)
    if not store.folders(STATE_STORES):
        raise RecoveryError(
            f"{store.location} holds no state: the number of partitions of its query is that of "
            "its input. Nothing was changed.",
            Remedy(change="repartition the rows in the query", start=True),
        )
    if not _is_rocksdb(provider):
        raise RecoveryError(
            f"The state of {store.location} is in {provider.rpartition('.')[2] or 'a store'}, and "
            f"Spark repartitions that of {_ROCKSDB} alone. Nothing was changed.",
            Remedy(
                change="begin on a new checkpoint with RocksDB (stateful_spark_conf) and the new "
                f"{_PARTITIONS}",
                start=True,
                costs="the state is built anew",
            ),
            Remedy(change="leave the number as it is", start=True),
        )
    if now == str(partitions):
        raise RecoveryError(
            f"The state of {store.location} has {partitions} partitions already. Nothing was "
            "changed.",
            Remedy(start=True),
        )


def put_aside(store: CheckpointStore, found: Unfinished) -> None:
    """Remove what the repartition wrote of the state, then put its entry aside; as often as needed.

    Spark takes a snapshot before a change log of the same version: one that is left would be read
    in place of what the next batch writes. The entry goes last, since it tells what to remove.
    """
    of_it = re.compile(
        rf"{found.batch + 1}(_[^.]+)?\.(delta|snapshot|zip|changelog)", re.ASCII
    )  # the state behind batch N has version N+1
    metadata = re.compile(rf"state/[0-9]+/_metadata/v2/{found.batch}", re.ASCII)
    written = [
        path
        for path in store.below(STATE_STORES)
        if of_it.fullmatch(path.rpartition("/")[2]) or metadata.fullmatch(path)
    ]
    store.delete([*written, *map(beside, written)])
    path = f"{OFFSETS}/{found.batch}"
    because = "as nobody has promised anything of its batch"
    mend(store, [Mend(path=path, found="is an unfinished repartition", because=because)])


def _is_rocksdb(provider: str) -> bool:
    return provider.rpartition(".")[2] == _ROCKSDB


def _is_number(text: str | None) -> bool:
    return text is not None and re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) is not None


# --- two at a time --------------------------------------------------------------------------------
# Spark's call writes the state and then ``commits/N``, and cannot be asked in between whether it is
# still wanted. So who repartitions says so all the while, and nobody takes its entry away.


@contextmanager
def at_work(store: CheckpointStore) -> Iterator[None]:
    """Say in ``eos/repartition.json`` that this process repartitions, again and again.

    Raises:
        PipelineAliveError: another process does.
        StoreError: the store did not answer at the beginning.
    """
    require_nobody_at_work(store)
    who, ended = f"process {os.getpid()} on {socket.gethostname()}", threading.Event()

    def say(beat: int) -> None:
        store.put(REPARTITION, json.dumps({"who": who, "beat": beat}).encode())

    def go_on() -> None:
        beat = 0
        while not ended.wait(_BEAT_S):
            beat += 1
            with suppress(StoreError):
                say(beat)

    say(0)
    saying = threading.Thread(target=go_on, daemon=True)
    saying.start()
    try:
        yield
    finally:
        ended.set()
        saying.join()
        store.delete([REPARTITION])


def require_nobody_at_work(store: CheckpointStore) -> None:
    """Refuse while another process repartitions: its sign changes while it is looked at."""
    first = store.get(REPARTITION)
    until = time.monotonic() + 3 * _BEAT_S
    while first is not None and time.monotonic() < until:
        time.sleep(_BEAT_S / 4)
        now = store.get(REPARTITION)
        if now is None:
            return
        if now != first:
            who = now.decode(errors="replace")
            raise PipelineAliveError(
                f"The state of {store.location} is being repartitioned now ({who}). Nothing was "
                "changed.",
                Remedy(change="wait until that has ended"),
            )
