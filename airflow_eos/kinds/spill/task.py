"""A task whose rows are kept in the checkpoint: one Arrow stream, written when it is whole.

Until then the compressed rows wait in the worker's memory, since create-if-absent takes an object
as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from airflow_eos.core.delivery.spill import STREAM_MODULES, SpillStream, require_disk, running_batch
from airflow_eos.core.protocol.decision import PreparedWork
from airflow_eos.errors import DeliveryError
from airflow_eos.kinds.spill.participant import SpilledRows, new_key, table_of

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.core.checkpoint.store import CheckpointStore

TASK_MODULES = (*STREAM_MODULES, "airflow_eos.kinds.spill.task")

Now = Callable[[PreparedWork, "pa.Table"], object]


def read_back(works: Sequence[PreparedWork], what: str, why: str) -> DeliveryError:
    """Return the error for reading kept rows back, which no replay ever needs."""
    return DeliveryError(
        f"{len(works)} pieces of work of {what} were to be read back, and {why}. Kept rows are "
        "never lost, unless somebody has said so of them, or removed them. Where that batch is to "
        "go on without: airflow-eos accept."
    )


class SpilledTaskRows:
    """See :class:`~airflow_eos.core.delivery.port.TaskWriter`: keeps the rows in the checkpoint.

    Args:
        kind: of the participant.
        name: of the participant.
        store: the checkpoint, where the rows are kept.
        task: number of the task.
        task_attempt: of the task.
        about: metadata for the rows' schema, read when they are applied, and for the detail of the
            work in the decision, read later.
        look: called with each batch of rows, which it may refuse.
        now: applies the rows at once, without keeping them; None for exactly once.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        store: CheckpointStore,
        task: int,
        task_attempt: int,
        *,
        about: dict[str, str] | None = None,
        look: Callable[[pa.RecordBatch], None] = lambda _rows: None,
        now: Now | None = None,
    ) -> None:
        self._kind = kind
        self._kept = SpilledRows(store, name)
        self._name = name
        self._task = (task, task_attempt)
        self._look = look
        self._now = now
        self._batch = running_batch()
        self._stream = SpillStream(about)
        self._about = dict(about or {})
        self._rows = 0
        self._opened_at_ms = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Compress rows into memory."""
        self._look(rows)
        if not self._rows:
            self._opened_at_ms = time.time_ns() // 1_000_000
        self._stream.add(rows)
        self._rows += rows.num_rows

    def prepare(self, fingerprint: str) -> PreparedWork | None:
        """Create the object of rows, durable on return; no process reads it before the decision."""
        if not self._rows:
            return None
        stream = self._stream.whole()
        work = PreparedWork(
            kind=self._kind,
            participant=self._name,
            key=new_key(self._batch, *self._task),
            rows=self._rows,
            fingerprint=fingerprint,
            opened_at_ms=self._opened_at_ms,
            timeout_ms=None,
            detail={**self._about, "bytes": len(stream)},
        )
        if self._now is not None:
            self._now(work, table_of(stream, "what the task wrote"))
            return None
        require_disk(self._kept.store)
        self._kept.keep(work.key, stream)
        return work

    def abort(self) -> None:
        """Drop the rows from memory; nothing was written before :meth:`prepare`."""
        self._stream = SpillStream()
