"""A consumer group that shows how far a pipeline is, as an option of a start."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from airflow_eos.core.checkpoint import DecisionLog
from airflow_eos.core.closing import closed_on_error
from airflow_eos.core.delivery.port import PROGRESS
from airflow_eos.core.delivery.source import require_one_cluster
from airflow_eos.core.delivery.spark_session import stateful
from airflow_eos.core.delivery.start_option import StartOption
from airflow_eos.core.delivery.takeover import leave_nothing_open, record_drained
from airflow_eos.core.protocol.participant_group import reach_all
from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_eos.core.checkpoint import Tenure
    from airflow_eos.core.delivery.port import OffsetCommit, OffsetCommitTarget
    from airflow_eos.core.delivery.start_option import Start
    from airflow_eos.core.protocol.participant import Participant


class CommittedOffsets(StartOption):
    """The user's choice of a group, or none."""

    def __init__(self, target: OffsetCommitTarget | None) -> None:
        self._target = target
        self.progress: OffsetCommit | None = None
        self._participant: Participant | None = None

    def examine(self, start: Start) -> None:
        """Refuse a group that cannot show how far this query is."""
        if self._target is None:
            return
        require_one_cluster(start.read.sources)
        if start.sink.guarantee != "exactly_once" or PROGRESS in start.sink.names:
            raise ConfigurationError(
                "consumer_group goes with guarantee 'exactly_once' (found "
                f"{start.sink.guarantee!r}), whose decisions name it, and no output may be called "
                f"{PROGRESS!r} beside it."
            )
        kept = stateful(start.read.frame) if self._target.resume else ()
        if kept:
            raise ConfigurationError(
                f"The query keeps state ({', '.join(kept)}), which is in its checkpoint alone: an "
                "empty one cannot go on from a consumer group. Leave ConsumerGroup(resume=True), "
                "which --resume-from-group says, away."
            )

    def reached(self, start: Start) -> Participant:
        """Reach all participants as one; the one that says how far the pipeline is comes last."""
        interval = start.settings.interval
        if self._target is None:
            participant = start.sink.connect(interval)
            self._participant = start.resources.enter_context(closing(participant))
            return self._participant
        self.progress = self._target.connected(start.store)
        with closed_on_error(self.progress.participant) as last:
            found = reach_all([partial(start.sink.connect, interval), lambda: last])
        self._participant = start.resources.enter_context(closing(found))
        start.resources.callback(self.progress.close)
        return found

    def after_term(self, start: Start, tenure: Tenure) -> None:
        """Let the driver, when it ends, leave nothing open, and say so in the group."""
        participant, progress = self._participant, self.progress
        if participant is None:
            return

        def ended() -> None:
            leave_nothing_open(tenure, participant, start.driver)
            if progress is not None:
                record_drained(tenure, DecisionLog(start.store), participant, progress)

        start.heartbeat.before_stopped = ended
