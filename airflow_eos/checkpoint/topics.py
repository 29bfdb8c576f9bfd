"""``eos/topics.json``: which topics the offsets of this checkpoint are of, by their ids.

A topic that is deleted and made again keeps its name and counts its offsets anew. Kafka gives it
another id, which never comes back: where the id is the one that was noted, so are the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_eos.checkpoint.paths import TOPICS
from airflow_eos.errors import CheckpointFormatError, Remedy, TopicError
from airflow_eos.protocol.codec import Stored, encode

if TYPE_CHECKING:
    from airflow_eos.checkpoint.store import CheckpointStore


class SourceTopicIds(Stored, frozen=True, kw_only=True):
    """Topic → id, of all that were ever read."""

    ids: dict[str, str]


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
