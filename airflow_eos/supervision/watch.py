"""What the sensors and their triggers look at; no Airflow in here, so that both share it."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_eos.checkpoint import CheckpointStore, read_heartbeat
from airflow_eos.checkpoint.backend import HEARTBEAT
from airflow_eos.checkpoint.progress import read_state
from airflow_eos.recovery.driver_liveness import signs_of_life
from airflow_eos.supervision.health import Finding, Health, Observation, confirm_after_ms, judge
from airflow_eos.supervision.unread import unread_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_eos.kafka.client.settings import KafkaSettings
    from airflow_eos.protocol.decision import OpenWork


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a sensor makes of a look: done, failed (``error``), or neither: look again later.

    ``again_after_s`` asks for a second look, sooner than the sensor's own interval.
    """

    done: bool = False
    error: str | None = None
    value: Mapping[str, Any] = field(default_factory=dict)
    again_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProgressWatch:
    """Looks at one checkpoint. At most one target; none of them means: is it getting on at all?

    Attributes:
        checkpoint: its location.
        max_age_ms: see :func:`airflow_eos.supervision.health.judge`.
        batch_id: done once this batch is committed.
        since_batch: done once a later batch is committed, or the pipeline is idle.
        since_ms: done once a batch was committed after this time, or the pipeline is idle.
    """

    checkpoint: str
    max_age_ms: int
    batch_id: int | None = None
    since_batch: int | None = None
    since_ms: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The arguments again, for a trigger."""
        return asdict(self)

    def look(self, kafka: KafkaSettings, storage: Mapping[str, str]) -> Observation:
        """Read the checkpoint, and the topics' ends only where nothing else tells how it is.

        Whether its driver is alive takes a second look: one of its intervals, or three.

        ``storage`` is for the checkpoint's store. It may hold secrets, so no watch keeps it.
        """
        store = CheckpointStore.open(self.checkpoint, storage_options=storage)
        alive = bool(signs_of_life(store))
        state, heartbeat, written = read_state(store), read_heartbeat(store), store.head(HEARTBEAT)
        seen = Observation(state, heartbeat, None, written.modified_at_ms if written else 0, alive)
        if judge(seen, max_age_ms=self.max_age_ms).health is not Health.IDLE:
            return seen
        return replace(seen, unread=unread_offsets(kafka, state.sources))

    def conclude(self, seen: Observation, earlier: Observation | None = None) -> Conclusion:
        """Compare the look with the target."""
        finding = judge(seen, max_age_ms=self.max_age_ms, earlier=earlier)
        value = {
            "batch_id": seen.state.latest_commit,
            "committed_at_ms": seen.state.committed_at_ms,
            "health": finding.health.value,
            "reason": finding.reason,
            "alive": seen.alive,
        }
        if self._reached(seen, finding):
            return Conclusion(done=True, value=value)
        if finding.health is Health.STALLED:
            return Conclusion(error=f"{self.checkpoint} has stalled: {finding.reason}", value=value)
        suspect = finding.health is Health.SUSPECT
        again_after_s = confirm_after_ms(seen) / 1000 if suspect else None
        return Conclusion(value=value, again_after_s=again_after_s)

    def _reached(self, seen: Observation, finding: Finding) -> bool:
        state = seen.state
        if self.batch_id is not None:
            return state.latest_commit is not None and state.latest_commit >= self.batch_id
        idle = finding.health is Health.IDLE
        if self.since_batch is not None:
            return idle or (
                state.latest_commit is not None and state.latest_commit > self.since_batch
            )
        if self.since_ms is not None:
            return idle or (
                state.committed_at_ms is not None and state.committed_at_ms > self.since_ms
            )
        return finding.health in {Health.FRESH, Health.WORKING, Health.IDLE}


@dataclass(frozen=True, slots=True)
class TimeoutWatch:
    """Looks for open work that runs out of time.

    Attributes:
        prefix: whose transactions, where the checkpoint does not name them.
        checkpoint: its location, whose participants are all looked at; None: ``prefix`` alone.
        part_left: found are those with less than this part (0 to 1) of their timeout left.
        max_age_ms: and those older than this where their system ends nothing by itself.
    """

    prefix: str | None
    checkpoint: str | None
    part_left: float
    max_age_ms: int

    def as_dict(self) -> dict[str, Any]:
        """The arguments again, for a trigger."""
        return asdict(self)

    def look(
        self,
        kafka: KafkaSettings,
        storage: Mapping[str, str],
        reach: Mapping[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Return what runs out of time or is too old, the most urgent first.

        ``time_left_ms`` compares the clock of the participant's system with this machine's.

        Raises:
            ConfigurationError: no prefix was given and the checkpoint names no participant, or
                nothing says how to reach one of them.
        """
        from airflow_eos.recovery.run import watched

        store = None
        if self.checkpoint is not None:
            store = CheckpointStore.open(self.checkpoint, storage_options=storage)
        with closing(watched(store, kafka, reach=reach, prefix=self.prefix)) as participant:
            listed = participant.open()
        now_ms = time.time_ns() // 1_000_000
        found = [
            {
                "participant": each.participant,
                "key": each.key,
                "age_ms": now_ms - each.opened_at_ms,
                "timeout_ms": each.timeout_ms,
                "time_left_ms": self._left_ms(each, now_ms),
            }
            for each in listed
            if self._left_ms(each, now_ms) < self.part_left * (each.timeout_ms or 0)
        ]
        return sorted(found, key=lambda each: each["time_left_ms"])

    def _left_ms(self, work: OpenWork, now_ms: int) -> int:
        """Until its system ends it; where nothing does, until it is older than it may be."""
        ends_at_ms = work.ends_at_ms
        if ends_at_ms is None:
            ends_at_ms = work.opened_at_ms + self.max_age_ms
        return ends_at_ms - now_ms
