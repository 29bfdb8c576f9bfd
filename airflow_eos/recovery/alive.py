"""Signs of life: what suggests that a driver is still running this pipeline; pure.

Evidence for people, sensors and the refusal of recovery. Nothing here is needed for correctness:
a live pipeline that is recovered all the same loses its running attempt and never its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_eos.checkpoint.liveness import Heartbeat
    from airflow_eos.checkpoint.state import CheckpointState

MISSED_BEATS = 3
"""A driver that has not beaten for this many of its own intervals is taken for dead."""

FRESH_WITHOUT_HEARTBEAT_MS = 30_000
"""How young a checkpoint file must be to count as evidence where no heartbeat was ever written."""

_ENDED = frozenset({"stopped", "failed"})


def signs_of_life(
    heartbeat: Heartbeat | None, checkpoint: CheckpointState | None, now_ms: int
) -> tuple[str, ...]:
    """Say, in one sentence each, why the pipeline seems to be alive; empty if nothing says so.

    A checkpoint file that is not younger than the last heartbeat says nothing new: after a
    SIGKILL it would only prolong the wait. One that is younger was written by a driver whose
    heartbeat does not come through.
    """
    evidence = []
    window_ms = FRESH_WITHOUT_HEARTBEAT_MS
    if heartbeat is not None:
        window_ms = MISSED_BEATS * heartbeat.interval_ms
        age_ms = now_ms - heartbeat.beat_at_ms
        if age_ms < window_ms and heartbeat.phase not in _ENDED:
            evidence.append(
                f"driver {heartbeat.application_id} (process {heartbeat.pid} on {heartbeat.host}) "
                f"gave a heartbeat {_seconds(age_ms)} ago, phase {heartbeat.phase!r}"
            )
    if checkpoint is not None:
        beat_at_ms = heartbeat.beat_at_ms if heartbeat is not None else 0
        for what, written_at_ms in (
            (f"commits/{checkpoint.latest_commit}", checkpoint.committed_at_ms),
            (f"offsets/{checkpoint.latest_offsets}", checkpoint.planned_at_ms),
        ):
            if written_at_ms is None or written_at_ms <= beat_at_ms:
                continue
            if now_ms - written_at_ms < window_ms:
                evidence.append(f"{what} was written {_seconds(now_ms - written_at_ms)} ago")
    return tuple(evidence)


def _seconds(milliseconds: int) -> str:
    return f"{max(0, milliseconds) / 1000:.1f} s"
