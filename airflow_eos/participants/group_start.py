"""Where an empty checkpoint may go on from what a consumer group shows; pure.

A group is gone on from where a former pipeline was *drained*: it ended in order, with nothing open
and everything settled, and wrote so beside each offset. Whether it has delivered anything since is
asked of the systems of the rows, which remember the newest decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_eos.errors import OwnershipError
from airflow_eos.participants.group_marks import BEGAN, Mark, Offsets, foreign, mark_of

if TYPE_CHECKING:
    from airflow_eos.kafka.client.consumer_groups import Committed, Place


@dataclass(frozen=True, slots=True)
class Standing:
    """What a group shows.

    Attributes:
        group: its id.
        offsets: what is committed.
        marks: all different ones beside the offsets; None for what none of ours has committed.
    """

    group: str
    offsets: Offsets
    marks: frozenset[Mark | None]

    @classmethod
    def of(cls, group: str, committed: Mapping[Place, Committed]) -> Standing:
        """Read it."""
        offsets: Offsets = {}
        for (topic, partition), each in committed.items():
            offsets.setdefault(topic, {})[partition] = each.offset
        return cls(group, offsets, frozenset(mark_of(each) for each in committed.values()))

    def began(self, pipeline: str) -> bool:
        """Whether that pipeline has taken the group over, and committed nothing since."""
        return self.marks == {Mark(pipeline, BEGAN)}

    def require_own(self, pipeline: str) -> None:
        """Refuse what another pipeline, or somebody else, has committed.

        Raises:
            OwnershipError: with whose it is and how to go on.
        """
        for mark in self.marks:
            if mark is None:
                raise OwnershipError(
                    f"Consumer group {self.group!r} has offsets that no pipeline of this package "
                    "has committed; they would be overwritten. Name another group, or delete this "
                    f"one: kafka-consumer-groups --delete --group {self.group}. To go on from "
                    "there: ConsumerGroup(resume=True) or --resume-from-group (docs/sinks.md)."
                )
            if mark.pipeline != pipeline:
                raise foreign(self.group, mark)

    def require_drained(self) -> Mark | None:
        """Refuse to go on from what may not be all; returns the end of the former pipeline.

        None where none of ours has committed anything: these offsets are as good as their owner.

        Raises:
            OwnershipError: with what was found and how to go on.
        """
        if not self.offsets:
            raise OwnershipError(
                f"Consumer group {self.group!r} has no offsets to go on from. Give another start "
                "position; the group gets its offsets with the first batch."
            )
        if self.marks == {None}:
            return None
        mark = next(iter(self.marks)) if len(self.marks) == 1 else None
        if mark is None:
            raise OwnershipError(
                f"Consumer group {self.group!r} has offsets of several hands: somebody has reset "
                f"some of them, or pipelines have shared it. {_BY_HAND}"
            )
        if mark.drained is None and mark.batch != BEGAN:
            raise OwnershipError(
                f"Consumer group {self.group!r} is where batch {mark.batch} of pipeline "
                f"{mark.pipeline} ended, and that pipeline was not drained after it: more may be "
                "promised or delivered. Restore its checkpoint, start it, and drain it "
                f"(airflow-eos drain). {_BY_HAND}"
            )
        return mark


_BY_HAND = (
    "Nothing was started. If that cannot be: find out by the output how far it is, and give the "
    "start offsets yourself, under another group and another prefix."
)
