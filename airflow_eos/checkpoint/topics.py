"""``eos/topics.json``: which topics the offsets of this checkpoint are of, by their ids.

A topic that is deleted and made again keeps its name and counts its offsets anew. Kafka gives it
another id, which never comes back: where the id is the one that was noted, so are the rows.

A topic that is the same may have lost rows all the same, by its retention or by compaction: what
it tells of that is asked when the query starts, and before a promised batch is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from airflow_eos.checkpoint.backend import TOPICS
from airflow_eos.checkpoint.progress import read_state
from airflow_eos.errors import CheckpointFormatError, Remedy, TopicError
from airflow_eos.protocol.decision import Stored, encode

if TYPE_CHECKING:
    from airflow_eos.checkpoint.progress import SourceProgress
    from airflow_eos.checkpoint.store import CheckpointStore

log = structlog.get_logger(__name__)

Place = tuple[str, int]
"""Topic and partition."""


class SourceTopicIds(Stored, frozen=True, kw_only=True):
    """Topic → id, of all that were ever read."""

    ids: dict[str, str]


@dataclass(frozen=True)
class TopicsRead:
    """What the cluster of one source is asked of the topics that it reads; each for now.

    Attributes:
        ids: topic → id.
        policies: topic → ``cleanup.policy``, of those whose settings may be read.
        begins: topic and partition → the first offset that is there.
        skips_lost: rows that are gone are left out (``failOnDataLoss`` is false).
    """

    ids: Callable[[], Mapping[str, str]]
    policies: Callable[[], Mapping[str, str]] = dict
    begins: Callable[[], Mapping[Place, int]] = dict
    skips_lost: bool = False


@dataclass(frozen=True, slots=True)
class LostInput:
    """What topics tell of rows that a batch was planned to read, and that are gone.

    Attributes:
        past_retention: how many offsets of its range, by topic and partition.
        compacted: its topics in which a later row of a key takes the place of the ones before.
        skipped: whether every source that lost some leaves them out instead of failing.
    """

    past_retention: Mapping[Place, int] = field(default_factory=dict)
    compacted: tuple[str, ...] = ()
    skipped: bool = True

    def __bool__(self) -> bool:
        return bool(self.past_retention or self.compacted)

    def __str__(self) -> str:
        gone = [
            f"{count} offsets of the batch's range in partition {partition} of topic {topic!r} are "
            "not in its log any more"
            for (topic, partition), count in sorted(self.past_retention.items())
        ]
        gone += [
            f"topic {topic!r} is compacted, and keeps of a key the newest row alone"
            for topic in self.compacted
        ]
        return "; ".join(gone)


def lost_input(topics: Sequence[TopicsRead], sources: Sequence[SourceProgress]) -> LostInput:
    """What is gone of the ranges that a batch reads.

    Args:
        topics: of its sources.
        sources: the ranges, as :func:`~airflow_eos.checkpoint.progress.read_state` tells them.
    """
    gone: dict[Place, int] = {}
    read, compacted, skipped = set(), set(), True
    for each in topics:
        begins = each.begins()
        found: dict[Place, int] = {}
        for source in sources:
            for topic, partition, first, until in _spans(source):
                read.add(topic)
                missing = min(begins.get((topic, partition), 0), until) - first
                if missing > 0:
                    found[topic, partition] = missing
        gone |= found
        skipped = skipped and (each.skips_lost or not found)
        compacted |= {name for name, policy in each.policies().items() if "compact" in policy}
    return LostInput(gone, tuple(sorted(compacted & read)), skipped)


def lost_in_flight(store: CheckpointStore, topics: Sequence[TopicsRead]) -> LostInput:
    """:func:`lost_input` of the batch in flight."""
    return lost_input(topics, read_state(store).sources)


def _spans(source: SourceProgress) -> list[tuple[str, int, int, int]]:
    """Topic, partition, first offset and the one behind the last; a new partition begins at 0."""
    begun = source.start or {}
    return [
        (topic, partition, begun.get(topic, {}).get(partition, 0), until)
        for topic, partitions in (source.end or {}).items()
        for partition, until in partitions.items()
    ]


def warn_of_lost_rows(topics: Sequence[TopicsRead]) -> None:
    """Tell, by name, which topics may lose rows that a batch reads, or reads again."""
    for each in topics:
        compacted = sorted(name for name, told in each.policies().items() if "compact" in told)
        if compacted:
            log.warning(
                "input_is_compacted",
                topics=compacted,
                hint="a promised batch that has to be written again may find fewer rows than were "
                "promised; then a person accepts what is left. keep_rows of an Output keeps the "
                "rows until readers have them, and a transaction_timeout beyond the longest pause "
                "loses no promise",
            )


def same_topics_watched(
    store: CheckpointStore, asked: Sequence[Callable[[], Mapping[str, str]]]
) -> Callable[[], None]:
    """A look at the topics: are they those that the checkpoint's offsets are of?

    Compared now, and nothing is noted, so that a start that is refused stops nobody who runs. Then
    by whoever calls it: before Spark plans a batch, and after the tasks of a batch have read. Ids
    never come back, so they have read the noted topics.

    Args:
        store: the checkpoint.
        asked: each asks one cluster for topic → id.

    Raises:
        TopicError: see :func:`require_same_topics`.
    """
    for ids in asked:
        refuse_remade(store, ids())

    def look() -> None:
        for ids in asked:
            require_same_topics(store, ids())

    return look


def require_same_topics(store: CheckpointStore, found: Mapping[str, str]) -> None:
    """Refuse a topic that has another id than was noted; note those that are new.

    Args:
        store: the checkpoint.
        found: topic → id, as the cluster says now.

    Raises:
        TopicError: a topic was made again.
        CheckpointError: the note cannot be read or written.
    """
    known = refuse_remade(store, found)
    if found.keys() - known.keys():
        store.put(TOPICS, encode(SourceTopicIds(ids={**known, **found})))


def refuse_remade(store: CheckpointStore, found: Mapping[str, str]) -> Mapping[str, str]:
    """The ids that were noted, of which ``found`` has no other; nothing is written.

    Raises:
        TopicError: a topic was made again, or is that of another cluster.
        CheckpointError: the note cannot be read.
    """
    try:
        noted = store.read(TOPICS, SourceTopicIds)
    except CheckpointFormatError as error:
        raise CheckpointFormatError(
            f"{store.location}/{TOPICS} is damaged: whether a topic was deleted and made again "
            "since it was noted is not known.",
            Remedy(
                change=f"move {TOPICS} out of {store.location}",
                start=True,
                costs="rows, where an input topic was deleted and made again since the last batch",
            ),
        ) from error
    known = noted.ids if noted is not None else {}
    again = remade(known, found)
    if again:
        raise TopicError(
            f"The topic {', '.join(map(repr, again))} was deleted and made again since this "
            f"checkpoint ({store.location}) began to read it: the offsets that Spark goes on from "
            "mean other rows now. With exactly_once, nothing of the new topic was made visible. "
            "What was not read of the old one is gone; to read the new one from its beginning, "
            "start on a new checkpoint location."
        )
    return known


def remade(known: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """The topics whose id is another one than it was."""
    return sorted(name for name, its in found.items() if known.get(name, its) != its)
