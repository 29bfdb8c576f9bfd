"""What an upsert asks of HBase: see :mod:`.hbase` for what lies there."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.errors import DeliveryError
from airflow_eos.participants.upsert.hbase_cells import (
    LAST_EPOCH,
    NEWEST,
    NULLS,
    epoch_in,
    requests_of,
    version_of,
)
from airflow_eos.participants.upsert.hbase_rest import Rest
from airflow_eos.participants.upsert.hbase_schema import refuse_schema
from airflow_eos.participants.upsert.target import Owner, batch_and_task, not_ours
from airflow_eos.protocol.participant import Note

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.participants.upsert.target import About

_OURS, _FAMILY = "airflow_eos_upserts", "m"
_MARK, _OWNER, _EPOCH, _PROBE, _TALLY = (
    f"{_FAMILY}:{name}" for name in ("mark", "owner", "epoch", "probe", "tally")
)


class _Owned(msgspec.Struct, frozen=True):
    """The cell that tells whose the target is, and how far that one has come."""

    owner: Owner
    note: Note | None = None


class HBaseTarget:
    """See :class:`~airflow_eos.participants.upsert.target.Target`."""

    def __init__(self, url: str, target: str, *, timeout_s: float) -> None:
        self._rest = Rest(url, timeout_s=timeout_s)
        self._target = target
        self._table, _, self._family = target.partition("/")
        namespace, colon, _ = self._table.rpartition(":")
        self._ours = f"{namespace}{colon}{_OURS}"
        self._row = f"{self._table}:{self._family}"

    @property
    def address(self) -> Mapping[str, str]:
        """The table, with its family."""
        return {"system": "hbase", "target": self._target}

    @property
    def give_up(self) -> str:
        """Keeps the mark and the last epoch."""
        return f"put '{self._ours}', '{self._row}', '{_OWNER}', '' (in the HBase shell)"

    def go_on(self, tally: int) -> str:
        """See :meth:`Target.go_on`; the note is one cell with the owner, and goes with it."""
        return f"put '{self._ours}', '{self._row}', '{_TALLY}', '{tally}' and {self.give_up}"

    def check(self) -> None:
        """It forgets nothing and may be written to, and our table is there."""
        refuse_schema(self._table, self._family, self._rest.schema(self._table))
        if self._rest.schema(self._ours) is None:
            self._rest.create(self._ours, _FAMILY)
        # Never written, since nothing has that value: but whoever may not write is told so.
        column, never = f"{self._family}:{NULLS}", uuid.uuid4().bytes
        self._rest.swap(self._table, self._row, {column: never}, column, never)
        # A server can be told to refuse timestamps that are no time of today.
        self._rest.put(self._ours, self._row, _PROBE, NEWEST)

    def marked(self) -> str:
        """See :meth:`Target.marked`."""
        mark = {_MARK: uuid.uuid4().hex.encode()}
        self._rest.swap(self._ours, self._row, mark, _MARK, b"")
        return self.mark() or ""

    def mark(self) -> str | None:
        """See :meth:`Target.mark`."""
        found = self._rest.row(self._ours, self._row).get(_MARK)
        return None if found is None else found.decode()

    def claim(self, location: str, checkpoint: str) -> None:
        """See :meth:`Target.claim`."""
        cells = self._rest.row(self._ours, self._row)
        if cells.get(_OWNER):
            return
        epoch = self._next_epoch(int(cells.get(_EPOCH, b"0")))
        owned = _Owned(Owner(location, checkpoint, epoch))
        claimed = {_OWNER: msgspec.json.encode(owned), _EPOCH: str(epoch).encode()}
        # Whoever claims changes the epoch, so nobody has meanwhile, nor has and given it up again.
        self._rest.swap(self._ours, self._row, claimed, _EPOCH, cells.get(_EPOCH, b""))

    def owner(self) -> Owner | None:
        """See :meth:`Target.owner`."""
        owned, _ = self._owned()
        return None if owned is None else owned.owner

    def note(self, note: Note, checkpoint: str) -> None:
        """See :meth:`Target.note`."""
        while True:
            owned, stands = self._owned_by(checkpoint)
            last = owned.note
            if last is not None and (note.batch, note.attempt) < (last.batch, last.attempt):
                return
            noted = msgspec.json.encode(_Owned(owned.owner, note))
            if self._rest.swap(self._ours, self._row, {_OWNER: noted}, _OWNER, stands):
                return

    def newest(self) -> Note | None:
        """See :meth:`Target.newest`."""
        owned, _ = self._owned()
        return None if owned is None else owned.note

    def life(self) -> str:
        """See :meth:`Target.life`: whichever server answers, HBase has what it acknowledged."""
        return ""

    def tally(self) -> int:
        """See :meth:`Target.tally`."""
        return int(self._tally() or 0)

    def count(self, known: int) -> int | None:
        """See :meth:`Target.count`."""
        while True:
            stands = self._tally()
            number = int(stands or 0) + 1
            if number <= known:
                return None
            counted = {_TALLY: str(number).encode()}
            if self._rest.swap(self._ours, self._row, counted, _TALLY, stands):
                return number

    def apply(self, rows: pa.Table, about: About, checkpoint: str, order: str) -> int:
        """See :meth:`Target.apply`; HBase does not tell how many rows were older: 0."""
        owned, _ = self._owned_by(checkpoint)
        version = version_of(owned.owner.epoch, *batch_and_task(order))
        for at, body in enumerate(requests_of(rows, about, self._family, version)):
            if at:
                self._owned_by(checkpoint)
            self._rest.put_all(self._table, body)
        return 0

    def close(self) -> None:
        """Close the connection."""
        self._rest.close()

    def _tally(self) -> bytes:
        return self._rest.row(self._ours, self._row).get(_TALLY, b"")

    def _owned_by(self, checkpoint: str) -> tuple[_Owned, bytes]:
        """The same as :meth:`_owned`, if it is this checkpoint's (OwnershipError)."""
        owned, stands = self._owned()
        if owned is None or owned.owner.checkpoint != checkpoint:
            owner = None if owned is None else owned.owner
            raise not_ours(f"Family {self._target!r} in HBase", owner, self.give_up)
        return owned, stands

    def _owned(self) -> tuple[_Owned | None, bytes]:
        """Whose it is, and the cell that says it."""
        stands = self._rest.row(self._ours, self._row).get(_OWNER, b"")
        return (msgspec.json.decode(stands, type=_Owned) if stands else None), stands

    def _next_epoch(self, last: int) -> int:
        """Greater than the last one, and than all in the table, also where our row was removed.

        Files without such a timestamp are not read for it.
        """
        epoch = last + 1
        while epoch <= LAST_EPOCH:
            newest = self._rest.newest_since(self._table, self._family, version_of(epoch, 0, 0))
            if newest is None:
                return epoch
            epoch = epoch_in(newest) + 1
        raise DeliveryError(
            f"Table {self._table!r} has cells with timestamps above every version, or "
            f"{LAST_EPOCH} checkpoints have owned it: use a new table."
        )
