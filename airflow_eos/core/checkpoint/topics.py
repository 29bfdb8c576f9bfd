"""The topics that a checkpoint's offsets are of, by their ids (``eos/topics.json``).

A topic that is deleted and made again keeps its name and counts its offsets anew. Kafka gives it
another id, which never comes back: where the id is the one that was noted, so are the rows.

An unchanged topic may still have lost rows, by its retention or by compaction: its cluster is asked
for that when the query starts, and before a promised batch is read again.

And a partition may be there no more, or a query may read it no more: no source gives its rows then,
and no start could run a batch that Spark has planned with it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

import msgspec

from airflow_eos.core.checkpoint.backend import OFFSETS, TOPICS
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.mend import Mend
from airflow_eos.core.checkpoint.mending import decided_offsets
from airflow_eos.core.checkpoint.progress import SourceProgress, read_state
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import Stored, encode
from airflow_eos.errors import CheckpointFormatError, InputLostError, Remedy, TopicError

log = Log(__name__)

TopicPartition = tuple[str, int]
"""Topic and partition."""

NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Java's ``Uuid.ZERO_UUID`` as text, in the place of an id that a topic does not have."""


class SourceTopicIds(Stored, frozen=True, kw_only=True):
    """Ids of all topics ever read, by name; from the second source on, behind its number and ``/``.

    Two sources may be of two clusters, whose topics have the same names. :data:`NO_ID` is none: a
    broker that gives ids later has not made the topic again.
    """

    ids: dict[str, str]

    def __post_init__(self) -> None:
        known = {name: its for name, its in self.ids.items() if its != NO_ID}
        msgspec.structs.force_setattr(self, "ids", known)


@dataclass(frozen=True)
class TopicsRead:
    """The questions that one source's cluster answers of the topics read; each answer is of now.

    Attributes:
        ids: topic → id, of those that have one.
        policies: topic → ``cleanup.policy``, of those whose settings may be read.
        begins: topic and partition → the first offset that is there, of all that the query reads;
            none where that is not told.
        skips_lost: whether rows that are gone are left out (``failOnDataLoss`` is false).
        as_planned: whether, with ``availableNow``, a batch planned before this start runs only if
            it was planned with the partitions that there are now, as with Spark's own source.
    """

    ids: Callable[[], Mapping[str, str]]
    policies: Callable[[], Mapping[str, str]] = dict
    begins: Callable[[], Mapping[TopicPartition, int]] = dict
    skips_lost: bool = False
    as_planned: bool = False


@dataclass(frozen=True, slots=True)
class LostInput:
    """Rows that a batch was planned to read, and that are gone, as the topics tell.

    Attributes:
        past_retention: how many offsets of the batch's range are gone, by topic and partition.
        compacted: its topics in which a later row of a key takes the place of the ones before.
        skipped: whether every source that lost some leaves them out instead of failing.
        absent: whether a partition of the batch's range is read no more: then no source gives any
            row of the other partitions either.
    """

    past_retention: Mapping[TopicPartition, int] = field(default_factory=dict)
    compacted: tuple[str, ...] = ()
    skipped: bool = True
    absent: bool = False

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
    """Return what is gone of the ranges that a batch reads.

    Args:
        topics: those of the batch's sources.
        sources: the ranges, as :func:`~airflow_eos.core.checkpoint.progress.read_state` tells them.
    """
    gone: dict[TopicPartition, int] = {}
    compacted, skipped = set(), True
    spans = [span for source in sources for span in _spans(source)]
    apart = [_spans(each) for each in sources if each.kind == "kafka"]
    ranges = apart if len(apart) == len(topics) else [spans] * len(topics)
    begun = [each.begins() for each in topics]
    for each, begins, its in zip(topics, begun, ranges, strict=True):
        found = {
            (topic, partition): missing
            for topic, partition, first, until in its
            if (missing := min(begins.get((topic, partition), 0), until) - first) > 0
        }
        gone |= found
        skipped = skipped and (each.skips_lost or not found)
        compacted |= {name for name, policy in each.policies().items() if "compact" in policy}
    absent = {
        (topic, partition): until - first
        for its_sources, there in _apart(begun, sources)
        for topic, partition, first, until in chain(*map(_spans, its_sources))
        if (topic, partition) not in there and first < until
    }
    read = {topic for topic, *_ in spans}
    return LostInput(gone | absent, tuple(sorted(compacted & read)), skipped, bool(absent))


def lost_in_flight(store: CheckpointStore, topics: Sequence[TopicsRead]) -> LostInput:
    """Return what is gone of the batch in flight; see :func:`lost_input`."""
    return lost_input(topics, read_state(store).sources)


def _spans(source: SourceProgress) -> list[tuple[str, int, int, int]]:
    """Return topic, partition, first offset and the one behind the last; new ones begin at 0."""
    begun = source.start or {}
    return [
        (topic, partition, begun.get(topic, {}).get(partition, 0), until)
        for topic, partitions in (source.end or {}).items()
        for partition, until in partitions.items()
    ]


def _read_now(begun: Sequence[Mapping[TopicPartition, int]]) -> frozenset[TopicPartition] | None:
    """Return all partitions that the sources read; None where one source did not tell."""
    return frozenset(chain(*begun)) if begun and all(begun) else None


def _apart(
    begun: Sequence[Mapping[TopicPartition, int]], sources: Sequence[SourceProgress]
) -> list[tuple[Sequence[SourceProgress], frozenset[TopicPartition]]]:
    """Return the sources with the partitions that they read now; [] where a source did not tell.

    Each by itself where two read topics of one name, which may be of two clusters; else together.
    """
    there = _read_now(begun)
    if there is None:
        return []
    of_kafka = [each for each in sources if each.kind == "kafka"]
    names = [topic for each in of_kafka for topic in each.end or {}]
    if len(of_kafka) != len(begun) or len(set(names)) == len(names):
        return [(sources, there)]
    return [([each], frozenset(its)) for each, its in zip(of_kafka, begun, strict=True)]


@dataclass(frozen=True, slots=True)
class InputChange:
    """How the partitions that a query reads now differ from those that its checkpoint goes on from.

    Attributes:
        batch: the one in flight; None where there is none.
        gone: partitions that are read no more → the offsets of them that this batch was planned to
            read.
        promised: whether that batch was promised.
        unreadable: whether that batch was planned with some of ``gone``.
        unfit: whether this start, with ``availableNow``, cannot run that batch's partitions.
        skips_lost: whether every source leaves out what is gone.
    """

    location: str
    batch: int | None = None
    gone: Mapping[TopicPartition, int] = field(default_factory=dict)
    promised: bool = False
    unreadable: bool = False
    unfit: bool = False
    skips_lost: bool = False

    def require_accepted(self) -> None:
        """Refuse to leave out partitions in silence, and a promise that such a start cannot keep.

        Raises:
            InputLostError: with the settings of the one start that goes on.
        """
        settings, costs, rows = {}, "", sum(self.gone.values())
        if self.gone and self.skips_lost:
            log.error("input_left_out", what=_named(self.gone), batch=self.batch, rows=rows)
        elif self.gone:
            settings["failOnDataLoss"] = "false"
            costs = f"{rows} rows of them that batch {self.batch} was to read, and " if rows else ""
            costs += "what came to them later"
        if self.promised and self.unfit:
            settings["trigger"] = "1 second"
        if not settings:
            return
        found = (
            f"{_named(self.gone)}, which {self.location} goes on from, is not there any more, or "
            "the query does not read it"
            if self.gone
            else f"The query reads more partitions than batch {self.batch} of {self.location} was "
            "promised with, and a start with availableNow runs none but with all that there are"
        )
        again = Remedy(change="let the query read it again, where it is there", start=True)
        raise InputLostError(
            f"{found}. Nothing was started or written.",
            *([again] if costs else []),
            Remedy(settings=settings, start=True, costs=costs),
        )

    def mends(self) -> tuple[Mend, ...]:
        """Return the repair that puts an unpromised plan aside, so that Spark plans anew."""
        if self.promised or not (self.unreadable or self.unfit):
            return ()
        what = f"{_named(self.gone)} is read no more" if self.gone else "partitions came since"
        because = f"as nobody has promised anything of its batch, and {what}"
        return (Mend(path=f"{OFFSETS}/{self.batch}", found="cannot be run", because=because),)


def input_change(
    store: CheckpointStore, topics: Sequence[TopicsRead], *, available_now: bool
) -> InputChange:
    """Compare what the sources read now with what the next batch goes on from."""
    state = read_state(store)
    batch = state.in_flight
    apart = _apart([each.begins() for each in topics], state.sources) if state.sources else []
    if not apart:
        return InputChange(store.location)
    gone: dict[TopicPartition, int] = {}
    unreadable = differs = False
    for sources, there in apart:
        planned = {
            (topic, partition): max(0, until - first)
            for topic, partition, first, until in chain(*map(_spans, sources))
        }
        begun = [each.start or {} for each in sources] if batch is not None else []
        before = {(topic, each) for start in begun for topic, ps in start.items() for each in ps}
        gone |= {tp: planned.get(tp, 0) for tp in (before | planned.keys()) - there}
        unreadable = unreadable or not planned.keys() <= there
        differs = differs or planned.keys() != there
    as_planned = available_now and any(each.as_planned for each in topics)
    skips_lost = all(each.skips_lost for each in topics)
    if batch is None:
        return InputChange(store.location, gone=dict.fromkeys(gone, 0), skips_lost=skips_lost)
    return InputChange(
        store.location,
        batch,
        gone,
        promised=decided_offsets(DecisionLog(store), batch) is not None,
        unreadable=unreadable,
        unfit=as_planned and differs,
        skips_lost=skips_lost,
    )


def _named(partitions: Iterable[TopicPartition]) -> str:
    """Name partitions, for people: ``Topic 'orders' (partitions 0, 2)``."""
    topics: dict[str, list[str]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(str(partition))
    return " and ".join(f"Topic {t!r} (partitions {', '.join(p)})" for t, p in topics.items())


def warn_of_lost_rows(topics: Sequence[TopicsRead]) -> None:
    """Warn, by name, of topics that may lose rows that a batch reads, or reads again."""
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


def no_such_topic(names: Iterable[str], told: str = "") -> TopicError:
    """Return the error for a topic that a query names, and that does not exist."""
    return TopicError(
        f"A topic that the query reads ({', '.join(map(repr, names))}) does not exist, or was "
        f"deleted while it was read{told and f': {told}'}. Nothing was started or written.",
        Remedy(change="create the topic, where nothing was ever read of it", start=True),
        Remedy(
            change="take the topic out of what the query reads",
            start=True,
            costs="its rows that were not read",
        ),
    )


@cache
def tell_of_no_ids() -> None:
    """Warn, once in a process, that topics have no ids."""
    log.warning(
        "topics_not_watched",
        hint="this broker gives topics no ids (Metadata below version 10): a topic that is deleted "
        "and made again with more rows than were read is not noticed",
    )


def same_topics_watched(
    store: CheckpointStore, asked: Sequence[Callable[[], Mapping[str, str]]]
) -> Callable[[], None]:
    """Return a check whether the topics still are those that the checkpoint's offsets are of.

    They are compared now, and nothing is noted, so that a start that is refused stops nobody who
    runs. The check compares again: before Spark plans a batch, and after the tasks of a batch have
    read. Ids never come back, so those tasks have read the noted topics.

    Args:
        asked: each asks the cluster of one source for topic → id.

    Raises:
        TopicError: see :func:`require_same_topics`.
    """

    def topic_ids() -> dict[str, str]:
        return {
            f"{number}/{topic}" if number else topic: its
            for number, ids in enumerate(asked)
            for topic, its in ids().items()
        }

    refuse_remade(store, topic_ids())
    return lambda: require_same_topics(store, topic_ids())


def require_same_topics(store: CheckpointStore, found: Mapping[str, str]) -> None:
    """Refuse a topic that has another id than was noted; note those that are new.

    Args:
        found: topic → id, as the cluster says now.

    Raises:
        TopicError: a topic was made again.
        CheckpointError: the note cannot be read or written.
    """
    known = refuse_remade(store, found)
    if found.keys() - known.keys():
        store.put(TOPICS, encode(SourceTopicIds(ids={**known, **found})))


def refuse_remade(store: CheckpointStore, found: Mapping[str, str]) -> Mapping[str, str]:
    """Refuse a topic with another id than was noted; return the noted ids, and write nothing.

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
    again = sorted({name_of(each) for each in remade(known, found)})
    if again:
        raise TopicError(
            f"The topic {', '.join(map(repr, again))} was deleted and made again since this "
            f"checkpoint ({store.location}) began to read it: the offsets that Spark goes on from "
            "mean other rows now. With exactly_once, nothing of the new topic was made visible.",
            Remedy(
                change="settle what was promised (`airflow-eos recover "
                f"{shlex.quote(store.location)}`), then begin on a new checkpoint location under "
                "another prefix, with startingOffsets of the beginning of that topic and, of all "
                "others, of the end of the newest batch that readers have",
                start=True,
                costs="what was not read of the old topic, and the state of a stateful query",
            ),
        )
    return known


def are_noted(store: CheckpointStore, source: int, topics: TopicsRead) -> bool:
    """Whether all topics of a source have an id, which was noted: none is of another cluster."""
    noted, found = store.read(TOPICS, SourceTopicIds), topics.ids()
    ids = noted.ids if noted is not None else {}
    prefix = f"{source}/" if source else ""
    return bool(found) and all(ids.get(prefix + name) == its for name, its in found.items())


def name_of(noted: str) -> str:
    """Return the topic's name, without the number of its source."""
    return noted.rpartition("/")[2]


def remade(known: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the topics whose id has changed."""
    return sorted(name for name, its in found.items() if known.get(name, its) != its)
