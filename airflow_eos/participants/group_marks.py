"""What stands beside a group's offsets, and in a decision: which pipeline is how far; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_eos.errors import CheckpointFormatError, OwnershipError
from airflow_eos.kafka.client.consumer_groups import Committed
from airflow_eos.protocol.decision import PreparedWork

if TYPE_CHECKING:
    from airflow_eos.kafka.client.consumer_groups import Place

KIND = "consumer_group"
BEGAN = -1
"""In the place of a batch: where the pipeline began, which has delivered nothing yet."""
Offsets = dict[str, dict[int, int]]
"""topic → partition → offset of the next row"""


class Mark(msgspec.Struct, frozen=True):
    """What stands beside each offset, as its metadata.

    Attributes:
        pipeline: the random id of ``eos/pipeline.json``.
        batch: the offsets are where this batch ends; :data:`BEGAN`: where the pipeline began.
        drained: the nonce of the decision after which the pipeline ended in order with nothing
            open, None while it goes on.
        attempt: of that decision.
    """

    pipeline: str
    batch: int
    drained: str | None = None
    attempt: int = 0

    def beside(self, offsets: Offsets) -> dict[Place, Committed]:
        """The offsets, each with this mark."""
        text = msgspec.json.encode(_Metadata(self)).decode()
        return {
            (topic, partition): Committed(offset, text)
            for topic, partitions in offsets.items()
            for partition, offset in partitions.items()
        }


class _Metadata(msgspec.Struct, frozen=True):
    """The text itself: a name that nobody else gives, around the mark; either may grow."""

    mark: Mark = msgspec.field(name="airflow-eos")


class Reached(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a batch reaches: what a decision keeps of it."""

    pipeline: str
    batch: int
    offsets: Offsets

    @classmethod
    def of(cls, work: PreparedWork) -> Reached:
        """What :func:`work_of` was made of.

        Raises:
            CheckpointFormatError: the detail says nothing of offsets.
        """
        try:
            return msgspec.convert(work.detail, cls, strict=False)
        except msgspec.ValidationError as error:
            raise CheckpointFormatError(
                f"The decision about {work.identity} is not that of a consumer group: {error}. "
                "Nothing was guessed. Restore the decision from a copy of the checkpoint."
            ) from error


def mark_of(committed: Committed) -> Mark | None:
    """The mark beside an offset; None where somebody else has committed it."""
    try:
        return msgspec.json.decode(committed.metadata, type=_Metadata).mark
    except msgspec.MsgspecError:
        return None


def work_of(
    name: str, pipeline: str, batch: int, attempt: int, offsets: Offsets, at_ms: int
) -> PreparedWork:
    """What a decision keeps of it."""
    return PreparedWork(
        kind=KIND,
        participant=name,
        key=f"{pipeline}-{batch}-{attempt}",
        rows=0,
        fingerprint="0" * 32,
        opened_at_ms=at_ms,
        timeout_ms=None,
        detail=msgspec.to_builtins(Reached(pipeline, batch, offsets), str_keys=True),
    )


def foreign(group: str, mark: Mark) -> OwnershipError:
    """The error for a group that shows how far another pipeline is."""
    return OwnershipError(
        f"Consumer group {group!r} shows how far another pipeline is (its id is {mark.pipeline}, "
        f"batch {mark.batch}): two would overwrite each other. Name another group; or, where that "
        "pipeline is gone for good, delete this one: kafka-consumer-groups --delete --group "
        f"{group}. Then start again."
    )
