"""Settle one decision: its rows and the witness, or its loss and the witness, in one commit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_eos.errors import StoreError
from airflow_eos.failpoints import failpoint
from airflow_eos.participants.lake.decided import pipeline_of
from airflow_eos.participants.lake.files import PreparedFiles, is_there
from airflow_eos.participants.lake.table import LostRaceError
from airflow_eos.protocol.decision import Outcome

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.participants.lake.notes import WorkNotes
    from airflow_eos.participants.lake.table import LakeTable, View
    from airflow_eos.protocol.decision import Decision, PreparedWork

_PAUSES_S = (0.0, 0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Before each look of a commit that lost its race."""


class Settling:
    """The decisions of one pipeline for one table.

    Args:
        table: where the rows go.
        store: the checkpoint.
        notes: of the files, in it.
        name: the participant's name in decisions.
        application: under which the table remembers us.
    """

    def __init__(
        self,
        table: LakeTable,
        store: CheckpointStore,
        notes: WorkNotes,
        *,
        name: str,
        application: str,
    ) -> None:
        self._table = table
        self._store = store
        self._notes = notes
        self._name = name
        self._application = application
        self._files = PreparedFiles(table)

    def settle(self, decision: Decision, *, given_up: bool = False) -> Outcome:
        """Commit all work of the decision, or its loss; what the witness then says.

        ``given_up`` commits the loss although all files may be there.

        Nothing but a look tells the outcome: neither the reply to our commit nor its error.
        """
        works = [work for work in decision.works if work.participant == self._name]
        reason = ""
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            view = self._table.look()
            outcome = self.told(view, decision)
            if outcome is not None:
                return self._ended(view, works, outcome)
            files = [] if given_up else self._files.whole(works)
            failpoint("looked")
            batch = 2 * decision.batch_id
            try:
                view.check(files)
                view.append(files, self._slot(decision), batch + 1 if files else batch)
            except LostRaceError as error:
                reason = f": {error}"
        raise StoreError(
            f"The table {self._table.folder} did not take the commit of batch "
            f"{decision.batch_id} in {len(_PAUSES_S)} tries{reason}. Nothing was guessed, and "
            "what is promised stays promised: try again, or look who else writes so often."
        )

    def told(self, view: View, decision: Decision) -> Outcome | None:
        """What the witness says of all work of the decision; None: nothing yet."""
        number = view.witness(self._slot(decision))
        if number is None or number // 2 < decision.batch_id:
            return None
        if number // 2 > decision.batch_id:
            return Outcome.UNKNOWN
        return Outcome.COMMITTED if number % 2 else Outcome.ABORTED

    def _ended(self, view: View, works: Sequence[PreparedWork], outcome: Outcome) -> Outcome:
        """Forget what has ended, after that is durable."""
        view.make_durable()
        failpoint("settled-some")
        with self._files.disk("removing what was not committed"):
            if outcome is Outcome.COMMITTED:
                self._require_there(works)
            elif outcome is Outcome.ABORTED:
                for work in works:
                    self._files.of(work.key).unlink(missing_ok=True)
        if outcome is not Outcome.UNKNOWN:
            self._notes.forget(work.key for work in works)
        return outcome

    def _require_there(self, works: Sequence[PreparedWork]) -> None:
        """A cleaner that took a file while it was being committed is not passed over in silence."""
        if not any(self._notes.has(work.key) for work in works):
            return  # settled before: it may be compacted and cleaned by now
        gone = [work.key for work in works if not is_there(self._files.of(work.key))]
        if gone and self._table.look().names([self._files.of(key) for key in gone]):
            raise StoreError(
                f"{self._table.folder} names {len(gone)} files that are not there, first "
                f"{gone[0]}.parquet: they were removed while they were being committed. Does "
                "somebody clean the table with a retention shorter than the default? Remove them "
                "from its log, and write their rows again by hand."
            )

    def _slot(self, decision: Decision) -> str:
        return f"{self._application}/{self._pipeline}/{decision.attempt}"

    @cached_property
    def _pipeline(self) -> str:
        return pipeline_of(self._store).id
