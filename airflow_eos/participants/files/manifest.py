"""Data files that become visible by whole batches (``publish="manifest"``): Spark's own log.

============================================  =================================================
``<folder>/_spark_metadata/<n>``              the commit of one decision, and its witness
``<folder>/…/<key>.<end>``                    visible: Spark reads what its log names, alone;
                                              others list files, which are decided ones all the same
``_eos.<folder>/<name>/work/<key>/…``         prepared, as where files become visible one by one
``_eos.<folder>/<name>/mark``, ``owner``, ``notes/``  likewise
============================================  =================================================

A decision is settled as a whole, whichever of its work is asked for, by one entry that is created
if absent, once its files have their names: so no reader of the log ever sees a part of it. Where a
file is missing the entry says that the decision is lost, for good: since whoever saw the file
before has lost the race. What is older than the settled decisions that the log still tells is
UNKNOWN, and nothing is done: that is the floor.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_eos.errors import ConfigurationError, StoreError
from airflow_eos.failpoints import failpoint
from airflow_eos.participants.files.form import require_form
from airflow_eos.participants.files.layout import files_of
from airflow_eos.participants.files.manifest_log import LOG, ManifestLog, now_ms
from airflow_eos.participants.files.manifest_view import Settled
from airflow_eos.participants.files.marked import Marked
from airflow_eos.participants.files.owned import KIND, OwnedFolder
from airflow_eos.participants.files.place import visible_data
from airflow_eos.participants.lake.decided import decisions_naming, pipeline_of
from airflow_eos.protocol.decision import Outcome, WorkIdentity, require_own

if TYPE_CHECKING:
    from airflow_eos.checkpoint.pipeline import Pipeline
    from airflow_eos.checkpoint.store import CheckpointStore
    from airflow_eos.participants.files.layout import WorkFile
    from airflow_eos.participants.files.manifest_view import View
    from airflow_eos.participants.files.place import Place
    from airflow_eos.protocol.decision import Decision, PreparedWork

PUBLISH = {"publish": "manifest"}
_PAUSES_S = (0.0, 0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Before each look of a commit that lost its race."""


class ManifestParticipant(OwnedFolder):
    """See :class:`airflow_eos.protocol.participant.Participant`.

    Args:
        place: where readers look.
        name: the participant's name in decisions.
        mark: the random id of the name in this folder.
        store: the pipeline's checkpoint, whose decisions are settled.
    """

    def __init__(self, place: Place, *, name: str, mark: str, store: CheckpointStore) -> None:
        super().__init__(place, name=name, mark=mark, more=PUBLISH)
        self._store = store
        self._log = ManifestLog(place, name, mark)

    def begin(self) -> None:
        """Make the log where there is none: until then, readers would list the folder.

        Raises:
            ConfigurationError: the log is of another writer, or data is there that it would hide.
        """
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            view = self._log.look()
            if (self._name, self._marked.mark) in view.names:
                return
            self._require_ours(view)
            require_form(self._place, "manifest")
            self._log.append(view, ())
        raise self._refused("its first entry")

    def add(self, work: PreparedWork) -> None:
        """Make work visible that no decision names."""
        files = files_of(work)
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            view = self._log.look()
            self._publish(files)
            if self._log.append(view, files) and self._log.names_any_of([work.key]):
                self._place.remove([file.prepared for file in files])
                return
        raise self._refused(f"work {work.key}")

    def commit(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Settle the decisions that name ``works``; UNKNOWN where none is in flight that does."""
        self.check(works)
        named = self._decisions(works)
        once = {(each.batch_id, each.attempt): each for each in named.values()}
        settled = {place: self._settle(once[place]) for place in sorted(once)}
        became = {
            identity: settled[decision.batch_id, decision.attempt]
            for identity, decision in named.items()
        }
        return {work.identity: became.get(work.identity, Outcome.UNKNOWN) for work in works}

    def abort(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Remove what is prepared; what the log names stays."""
        require_own(works, KIND, self._name)
        prepared = {work: self._prepared(work.key) for work in works}
        keys = [work.key for work, paths in prepared.items() if paths]
        named = self._log.names_any_of(keys) if keys else set()
        return {
            work: self._place.remove(paths) and work.key not in named
            for work, paths in prepared.items()
        }

    def abandon(self, works: Collection[WorkIdentity]) -> Mapping[WorkIdentity, bool]:
        """Write the loss of the decisions that name them into the log, each as a whole."""
        require_own(works, KIND, self._name)
        named = decisions_naming(self._store, works)
        became = {each: self._settle(by, given_up=True) for each, by in named.items()}
        return {work: became.get(work) is Outcome.ABORTED for work in works}

    def outcome(self, works: Sequence[PreparedWork]) -> Mapping[WorkIdentity, Outcome]:
        """Ask the log; a file that is missing concludes nothing before a commit."""
        self.check(works)
        if not works:
            return {}
        self._marked.require()
        named, view = self._decisions(works), self._log.look()
        told: dict[WorkIdentity, Outcome] = {}
        for work in works:
            decision = named.get(work.identity)
            if decision is not None:
                said = view.told(decision.batch_id, decision.attempt, self._pipeline)
                told[work.identity] = said or Outcome.OPEN
            else:
                is_open = bool(self._prepared(work.key))
                told[work.identity] = Outcome.OPEN if is_open else Outcome.UNKNOWN
        return told

    def _require_ours(self, view: View) -> None:
        if view.number >= 0 and self._name not in {name for name, _ in view.names}:
            writers = ", ".join(sorted(name for name, _ in view.names)) or "Spark's own sink"
            raise ConfigurationError(
                f"{self._place.address}/{LOG} is written by {writers}: a log has one writer. Give "
                f"{self._name!r} a folder of its own."
            )
        if view.number < 0 and (found := visible_data(self._place)):
            raise ConfigurationError(
                f"{self._place.address} holds {found} already, which readers would not see any "
                "more once the folder has a log. Give an empty folder, or publish='listing'."
            )

    def _settle(self, decision: Decision, *, given_up: bool = False) -> Outcome:
        """Nothing but a look tells: neither the reply to our own entry nor its error."""
        works = [work for work in decision.works if work.participant == self._name]
        files = [file for work in works for file in files_of(work)]
        self._marked.require()
        for pause_s in _PAUSES_S:
            time.sleep(pause_s)
            view = self._log.look()
            outcome = view.told(decision.batch_id, decision.attempt, self._pipeline)
            if outcome is not None:
                return self._ended(works, outcome)
            is_whole = not given_up and self._are_there(files) and self._publish(files)
            failpoint("looked")
            settled = Settled(
                decision.batch_id, decision.attempt, is_whole, self._pipeline.id, now_ms()
            )
            self._log.append(view, files if is_whole else (), settled)
        raise self._refused(f"batch {decision.batch_id}")

    def _ended(self, works: Sequence[PreparedWork], outcome: Outcome) -> Outcome:
        failpoint("settled-some")
        files = [file for work in works for file in files_of(work)]
        if outcome is Outcome.ABORTED:
            self._place.remove([file.visible for file in files])
        if outcome is not Outcome.UNKNOWN:
            self._place.remove([file.prepared for file in files])
        return outcome

    @cached_property
    def _pipeline(self) -> Pipeline:
        return pipeline_of(self._store)

    def _decisions(self, works: Sequence[PreparedWork]) -> dict[WorkIdentity, Decision]:
        return decisions_naming(self._store, [work.identity for work in works])

    def _are_there(self, files: Sequence[WorkFile]) -> bool:
        """Each is prepared, or visible already; where one is not, no other is made visible."""
        prepared = self._place.sizes([file.prepared for file in files])
        visible = self._place.sizes([file.visible for file in files])
        found = zip(files, prepared, visible, strict=True)
        return all(file.size in sizes for file, *sizes in found)

    def _publish(self, files: Sequence[WorkFile]) -> bool:
        """Give each its name; whether all are there now, whole and durable."""
        self._place.publish([(file.prepared, file.visible) for file in files])
        sizes = self._place.sizes([file.visible for file in files])
        self._place.settle(
            file.visible for file, size in zip(files, sizes, strict=True) if size is not None
        )
        return sizes == [file.size for file in files]

    def _refused(self, what: str) -> StoreError:
        return StoreError(
            f"{self._place.address}/{LOG} did not take {what} in {len(_PAUSES_S)} tries. Nothing "
            "was guessed, and what is promised stays promised: try again, or look who else writes "
            "there so often."
        )


def joined(place: Place, name: str, store: CheckpointStore) -> ManifestParticipant:
    """The participant of a sink that starts, in a place that was looked at before.

    Raises:
        ConfigurationError: see :meth:`ManifestParticipant.begin`.
        StoreError: the place refuses.
    """
    mark = Marked.made(place, name).mark
    participant = ManifestParticipant(place, name=name, mark=mark, store=store)
    participant.begin()
    return participant
