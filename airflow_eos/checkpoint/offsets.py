"""Spark's offset log held against the decisions, which are right where the two differ.

Spark's ``add`` looks whether the name is free, writes beside it and renames; two drivers can both
do it, and the later rename stands, even after ``commits/N`` (S3A copies, which takes longer still).
A restart would then read another range than the one that was delivered, without complaint. So a
COMMIT decision keeps ``offsets/N`` as its attempt was evaluated with it:

* what the file says is believed only if its time stamp is the one Spark evaluated the batch with;
* a starting driver puts the newest two entries right, after it has taken its term;
* its first batch looks at both again, since a late rename may have come between that and Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from airflow_eos.checkpoint.logs import parse_offsets
from airflow_eos.checkpoint.paths import OFFSETS
from airflow_eos.checkpoint.terms import newest_planned
from airflow_eos.errors import SupersededError
from airflow_eos.protocol.decision import Verdict

if TYPE_CHECKING:
    from airflow_eos.checkpoint.decisions import DecisionLog
    from airflow_eos.checkpoint.store import CheckpointStore

log = structlog.get_logger(__name__)


class OffsetLog:
    """``offsets/`` of one checkpoint, as far as a driver relies on it."""

    def __init__(self, store: CheckpointStore, decisions: DecisionLog) -> None:
        self._store = store
        self._decisions = decisions

    def evaluated(self, batch_id: int, evaluated_at_ms: int) -> str:
        """The content of ``offsets/N`` with which this process evaluates the batch.

        Args:
            batch_id: N.
            evaluated_at_ms: Spark's time stamp of the batch that it evaluates now
                (``batchTimestampMs``, what ``current_timestamp()`` gives in it).

        Raises:
            SupersededError: the file is gone, or another driver's.
            CheckpointFormatError: the file cannot be read.
        """
        content = self._content(batch_id)
        if content is None:
            raise SupersededError(
                f"Batch {batch_id}: {OFFSETS}/{batch_id} is gone from {self._store.location} while "
                f"the batch runs. {_NEXT}"
            )
        where = f"{self._store.location}/{OFFSETS}/{batch_id}"
        written_for_ms = parse_offsets(content.encode(), where).batch_timestamp_ms
        if written_for_ms != evaluated_at_ms:
            raise SupersededError(
                f"Batch {batch_id}: {where} was planned at {written_for_ms}, but this driver "
                f"evaluates a batch planned at {evaluated_at_ms} (ms since the epoch): another "
                f"driver has replaced it. {_NEXT}"
            )
        return content

    def require_as_decided(self, batch_id: int) -> None:
        """The entry of the batch says what its first COMMIT decision says, if there is one.

        Raises:
            SupersededError: it says something else.
        """
        decided = self._decided(batch_id)
        if decided is not None and self._content(batch_id) != decided:
            raise SupersededError(
                f"{self._store.location}/{OFFSETS}/{batch_id} is not what batch {batch_id} was "
                f"delivered with: another driver has replaced it since this one started. {_NEXT}"
            )

    def repair(self) -> None:
        """Put the newest two entries right; only for a driver that has taken its term.

        Older ones Spark never reads again.
        """
        newest = newest_planned(self._store)
        if newest is None:
            return
        for batch_id in (newest - 1, newest):
            decided = self._decided(batch_id) if batch_id >= 0 else None
            if decided is not None and self._content(batch_id) != decided:
                log.warning("offsets_repaired", batch=batch_id, location=self._store.location)
                # Hadoop checks a local file against the sum beside it, if there is one.
                self._store.delete([f"{OFFSETS}/.{batch_id}.crc"])
                self._store.put(f"{OFFSETS}/{batch_id}", decided.encode())

    def _decided(self, batch_id: int) -> str | None:
        """What the batch was promised with; None where nobody did, or in format version 1."""
        decided = self._decisions.of_batch(batch_id)
        return next((d.offsets for d in decided if d.verdict is Verdict.COMMIT), None)

    def _content(self, batch_id: int) -> str | None:
        data = self._store.get(f"{OFFSETS}/{batch_id}")
        return None if data is None else data.decode("utf-8", errors="replace")


_NEXT = (
    "Nothing of ours was made visible and nothing is lost. Make sure that no other driver runs "
    "this checkpoint, then start the query again: it takes the range that the decisions name."
)
