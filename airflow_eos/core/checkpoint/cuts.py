"""``eos/cuts/<batch>.json``: the consistent cut after each batch, created if absent.

Written last thing in a batch by the driver, or by a recovery that leaves nothing owed. Two writers
may have looked at different versions of a table: both are right, and the first one stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property, partial
from typing import cast

from airflow_eos.core.checkpoint.backend import CUTS, cut_path
from airflow_eos.core.checkpoint.pipeline import owner_of
from airflow_eos.core.checkpoint.rulings import Acceptance
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.failpoints import failpoint
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.cut import BatchEnd, Cut, Position, Seekable
from airflow_eos.core.protocol.decision import encode, one_line
from airflow_eos.core.protocol.participant import Member, Participant
from airflow_eos.core.protocol.participant_group import alone
from airflow_eos.core.protocol.promise import Promise
from airflow_eos.errors import CheckpointFormatError, EosError, StoreError, SupersededError

log = Log(__name__)

_NAME = re.compile(r"(0|[1-9][0-9]{0,17})\.json", re.ASCII)


class CutLog:
    """The cuts of one checkpoint."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._pruned_before: int | None = None

    def of_batch(self, batch_id: int) -> Cut | None:
        """Return the cut after the batch; None where there is none.

        Raises:
            CheckpointFormatError: it is damaged, or of another batch or pipeline.
        """
        cut = self._store.read(cut_path(batch_id), Cut)
        if cut is not None and (cut.batch_id, cut.pipeline) != (batch_id, self.pipeline):
            raise CheckpointFormatError(
                f"{self._store.location}/{cut_path(batch_id)} is of batch {cut.batch_id} of the "
                f"pipeline {cut.pipeline}: it was copied here. Nothing was read by it: remove it."
            )
        return cut

    @cached_property
    def pipeline(self) -> str:
        """The random id of the checkpoint's pipeline; empty where it has none."""
        return owner_of(self._store).pipeline

    def whole(self, batch_id: int) -> Cut | None:
        """Return the cut after the batch, or None; say of a damaged one that it is passed over."""
        try:
            return self.of_batch(batch_id)
        except CheckpointFormatError as error:
            log.warning("cut_damaged", batch=batch_id, error=str(error))
            return None

    def record(self, cut: Cut) -> None:
        """Create the cut, unless one stands that can be read.

        It need not be durable: without it Spark runs the batch again, which writes it.
        """
        path, data = cut_path(cut.batch_id), encode(cut)
        if not self._store.create(path, data, durable=False) and self.whole(cut.batch_id) is None:
            self._store.put(path, data)

    def listed(self) -> dict[int, int]:
        """List the batches that have a cut, and when it was written (ms, by the store's clock)."""
        named = ((_NAME.fullmatch(each.name), each) for each in self._store.list(CUTS))
        return {int(name[1]): each.modified_at_ms for name, each in named if name is not None}

    def prune(self, before_batch: int) -> None:
        """Remove the cuts of batches below ``before_batch``: all of them first, then what came."""
        first = self._pruned_before
        old = self.listed() if first is None else range(first, before_batch)
        self._store.delete(cut_path(batch) for batch in old if batch < before_batch)
        self._pruned_before = max(before_batch, first or 0)


class CutWriter:
    """Writes the cut after each settled batch; where it cannot, that is said, and delivery goes on.

    Args:
        require_in_flight: raises SupersededError where a batch is not the newest any more.
        retained: how many cuts are kept; None: older ones are left to others.
    """

    def __init__(
        self,
        store: CheckpointStore,
        participant: Participant,
        require_in_flight: Callable[[int], None],
        retained: int | None = None,
    ) -> None:
        self.log = CutLog(store)
        self._participant = participant
        self._require_in_flight = require_in_flight
        self._retained = retained
        self._last: Cut | None = None

    def write(self, promise: Promise, accepted: Acceptance | None = None) -> None:
        """Write the cut after the batch of ``promise``, all of whose rows are committed.

        ``accepted``: a person let the batch go on, perhaps without some of its rows.

        Raises:
            SupersededError: the batch was not the newest any more when a system had been looked at.
        """
        batch_id, last = promise.batch_id, self._last
        if last is None or last.batch_id != batch_id - 1:
            last = self.log.whole(batch_id - 1) if batch_id else None
        cut = Cut(
            batch_id=batch_id,
            pipeline=self.log.pipeline,
            incomplete=batch_id if accepted else last.incomplete if last is not None else None,
            positions={
                member.name: self._position(each, member, promise, last)
                for each in alone(self._participant)
                for member in each.members
            },
        )
        failpoint("cutting")
        try:
            self.log.record(cut)
            if self._retained is not None:
                self.log.prune(batch_id - self._retained)
        except StoreError as error:
            log.warning("cut_not_written", batch=batch_id, error=str(error))
        self._last = cut

    def _position(
        self, participant: Participant, member: Member, promise: Promise, last: Cut | None
    ) -> Position:
        former = last.positions.get(member.name) if last is not None else None
        if former is None or former.at is None:
            former = Position(member.kind, promise.batch_id, None)
        if not hasattr(participant, "position"):
            return Position(member.kind, former.since, None, "it keeps its newest state alone")
        works, batch_id = promise.part(member.name).works, promise.batch_id
        still = partial(self._require_in_flight, batch_id)
        end = BatchEnd(batch_id, self.log.pipeline, works, former.at, still)
        try:
            at = cast("Seekable", participant).position(end)
        except SupersededError:
            raise
        except EosError as error:
            log.warning("position_not_known", batch=batch_id, error=str(error))
            return Position(member.kind, former.since, None, one_line(f"not known: {error}"))
        why = "" if at is not None else "its sink marks no rows (batch_column)"
        return Position(member.kind, former.since, at, why)
