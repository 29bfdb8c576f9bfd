"""The audit: does a ``read_committed`` reader have every row exactly once, in order, and no more?

It trusts nothing of the delivery: topics are read with librdkafka's consumer, decisions are read
as files. The input must be at rest: a row that the app has not come to yet counts as lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Literal

import msgspec
import numpy as np

from airflow_eos.core.arguments import Place, Topics, checked
from airflow_eos.core.checkpoint.backend import DECISIONS, SPENT, TOPICS
from airflow_eos.core.checkpoint.decisions import DecisionLog
from airflow_eos.core.checkpoint.layout import batch_folders
from airflow_eos.core.checkpoint.progress import read_state, require_begun
from airflow_eos.core.checkpoint.rulings import skipped_input
from airflow_eos.core.checkpoint.spark_log import SparkLog
from airflow_eos.core.checkpoint.store import CheckpointStore
from airflow_eos.core.checkpoint.topics import SourceTopicIds, name_of
from airflow_eos.core.protocol.decision import Decision
from airflow_eos.core.protocol.promise import named_by
from airflow_eos.errors import AuditError, ConfigurationError, Remedy
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.identity import KIND, as_transaction
from airflow_eos.ops.audit.compare import SHOWN, Comparison, RowPosition, Violations, compare, parse
from airflow_eos.ops.audit.rows import (
    Extract,
    TopicRows,
    partition_ends,
    peek,
    read_topic,
    reader,
    topic_id,
)

NO_ORDER = "none"
"""The ``order_by`` by which nobody asks for the order."""


class Unjudged(msgspec.Struct, frozen=True):
    """One question of the audit that has no answer.

    ``rows`` is how many rows it is about, None where that is not known either; ``why`` what is not
    known, and ``answer`` what would give an answer.
    """

    why: str
    answer: str
    rows: int | None = None


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """The input as a checkpoint tells it; empty where no checkpoint was given.

    ``read`` is which offsets of each (topic, partition) are delivered; ``skipped`` which of them,
    from the first to before the last, a person has given up; ``others`` what is read besides the
    topics of the audit; ``remade`` the audited topics that are not those that were read, by their
    ids.
    """

    read: Mapping[tuple[str, int], tuple[int, int]] | None = None
    skipped: Sequence[tuple[str, int, int, int]] = ()
    others: Sequence[str] = ()
    remade: Sequence[str] = ()


def unjudged(
    inputs: Sequence[TopicRows],
    outputs: Sequence[TopicRows],
    compared: Comparison,
    *,
    sources: Sources,
    moved: Sequence[str],
    expression: str,
    order_by: str = "key",
) -> tuple[Unjudged, ...]:
    """Return all questions without an answer; an audit is exact only where there are none.

    Args:
        inputs: the rows that went in, as far as they are there.
        outputs: the rows that came out, as far as they are there.
        moved: topics of the input that were written to, or cut off, while they were audited.
        expression: the one that names a row.
        order_by: the one that gives a row's key.
    """
    return (
        *_nothing_compared(inputs, outputs, compared, expression),
        *_not_there(inputs, outputs),
        *_of_rows(compared, moved),
        *of_order(compared, order_by),
        *_of_checkpoint(compared, sources),
    )


def without_meaning(
    inputs: Sequence[TopicRows], outputs: Sequence[TopicRows], compared: Comparison
) -> tuple[str, ...]:
    """Return the counts that say nothing, since the compared rows are not the same rows.

    Where rows are aggregated, or named otherwise, a difference is neither a loss nor a row from
    nowhere, and the same id twice is no copy. Rows that carry an id, and whose counterparts have
    gone with the input's retention, are copies where they are twice.
    """
    if not any(len(each.ids) for each in outputs):
        return ("lost",)  # the app has not run, or these are not its topics
    if compared.matched and not compared.collapsed:
        return ()
    gone = any(end.low > 0 for each in inputs for end in each.ends.values())
    carried = any(each.unidentified < len(each.ids) for each in outputs)
    if gone and carried and not compared.collapsed:
        return ("lost", "reordered", "unexpected")
    return ("lost", "duplicated", "reordered", "unexpected")


def _nothing_compared(
    inputs: Sequence[TopicRows], outputs: Sequence[TopicRows], compared: Comparison, expression: str
) -> Iterator[Unjudged]:
    rows_in, rows_out = (sum(len(each.ids) for each in some) for some in (inputs, outputs))
    if rows_in == 0:
        yield Unjudged(
            f"the input {_named(inputs)} has no rows: nothing can be held against it",
            "audit while the input still has what was read",
            rows_out,
        )
    elif rows_out == 0:
        yield Unjudged(
            f"{_named(outputs)} has no rows: whether the app has delivered cannot be told",
            "look whether the app has run, and whether these are its topics",
            rows_in,
        )
    elif compared.matched == 0:
        unnamed = sum(each.unidentified for each in outputs)
        what = (
            f"none of the {rows_out} rows that came out has a {expression!r}"
            if unnamed == rows_out
            else f"no row that came out has a {expression!r} that went in"
        )
        yield Unjudged(
            f"{what}: they are other rows, as where a pipeline aggregates, or the id is another "
            "one there",
            "say with --id what names a row on both sides; what is aggregated, compare by its "
            "totals",
            rows_out,
        )
    elif compared.collapsed:
        yield Unjudged(
            f"several rows of the input share each {expression!r}, and fewer came out, at least "
            "one of each: what was aggregated or deduplicated cannot be told from what was lost",
            "say with --id what names one row; what is aggregated, compare by its totals",
            rows_in,
        )
    elif compared.shared:
        yield Unjudged(
            f"{compared.shared} rows of the input share their {expression!r} with another one: how "
            "many of each came out is compared, and not which of them",
            "say with --id what names one row",
            compared.shared,
        )


def _not_there(inputs: Sequence[TopicRows], outputs: Sequence[TopicRows]) -> Iterator[Unjudged]:
    for topics, what in (
        (inputs, "whether each of them was delivered once"),
        (outputs, "whether one came twice or out of order"),
    ):
        for each in topics:
            cut = {p: end.low for p, end in sorted(each.ends.items()) if end.low > 0}
            if cut:
                places = ", ".join(f"{p} before {low}" for p, low in cut.items())
                yield Unjudged(
                    f"{each.topic} has lost its oldest rows (retention, or delete_records): "
                    f"partition {places}; {what} is not known",
                    "audit before retention passes, as of a copy of the topic",
                    sum(cut.values()),
                )
            if each.compacted:
                yield Unjudged(
                    f"{each.topic} is compacted: which rows it had before is not known",
                    "compare the newest value of each key instead",
                )
            if each.compacted is None:
                yield Unjudged(
                    f"whether {each.topic} is compacted is not told",
                    f"grant DescribeConfigs on Topic {each.topic!r}",
                )
    for each in inputs:
        if still := sum(end.high - end.stable for end in each.ends.values()):
            yield Unjudged(
                f"{each.topic} has transactions that are open: their rows did not go in yet",
                "audit when who writes the input has ended them",
                still,
            )


def _of_rows(compared: Comparison, moved: Sequence[str]) -> Iterator[Unjudged]:
    if compared.strangers:
        yield Unjudged(
            "rows that came out, and whose counterpart the input does not have any more or came "
            "from elsewhere: whether they ever went in is not known",
            "audit before retention passes, with all topics that are read",
            compared.strangers,
        )
    if compared.missing:
        yield Unjudged(
            "rows that went in and are not in the output, which may have had them",
            "audit before retention of the output passes, and with no transaction open",
            compared.missing,
        )
    if moved:
        yield Unjudged(
            f"{', '.join(moved)} changed while it was audited: what came meanwhile is not judged",
            "audit an input at rest",
        )


def of_order(compared: Comparison, order_by: str) -> Iterator[Unjudged]:
    """Return what is not known of the order; nothing where nobody has asked for it."""
    if order_by == NO_ORDER:
        return
    leave = f"say {NO_ORDER!r} for order_by (--order-by) where no order is promised"
    if compared.keyless:
        yield Unjudged(
            f"rows of the input have no {order_by!r}: their order is not judged",
            f"say with order_by (--order-by) what their key is; or {leave}",
            compared.keyless,
        )
    if compared.spread:
        yield Unjudged(
            f"rows of one {order_by!r} are in several partitions of a topic: in which order they "
            "went in or came out is not judged",
            f"say with order_by (--order-by) a key that stays in its partition; or {leave}",
            compared.spread,
        )


def _of_checkpoint(compared: Comparison, sources: Sources) -> Iterator[Unjudged]:
    if compared.unread:
        yield Unjudged(
            "rows that the query has not delivered yet, or that are before where it began",
            "audit when the app has read all of the input",
            compared.unread,
        )
    if sources.others:
        yield Unjudged(
            f"the query reads {', '.join(sources.others)} as well",
            "audit with all topics that are read, comma-separated",
        )
    if sources.remade:
        yield Unjudged(
            f"{', '.join(sources.remade)} was deleted and made again since it was read: what came "
            "out is of the former topic",
            "nothing: the former topic's rows are gone",
        )


def _named(topics: Sequence[TopicRows]) -> str:
    return ", ".join(each.topic for each in topics)


def visible_undecided(
    outputs: Sequence[TopicRows], decisions: Iterable[Decision]
) -> Violations | None:
    """Count visible rows outside the ranges of all retained COMMIT decisions.

    None where those decisions say nothing of these topics, as another pipeline's.

    Decisions are pruned from the oldest batch on, and a batch writes behind the one before it: so
    from the lowest retained range of a partition on, every visible row must be inside a range.
    Rows of another producer between the rows of a range escape this check; they are ``unexpected``.
    """
    ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for entry in named_by(decisions):
        if entry.work.kind != KIND:
            continue
        for span in as_transaction(entry.work).written:
            ranges.setdefault((span.topic, span.partition), []).append((span.first, span.last))
    if not {topic for topic, _ in ranges} & {rows.topic for rows in outputs}:
        return None
    count = 0
    first: list[RowPosition] = []
    for rows in outputs:
        for partition in sorted(rows.ends):
            spans = ranges.get((rows.topic, partition))
            if spans is None:
                continue
            offsets = np.sort(rows.offsets[rows.partitions == partition])
            bare = _outside(offsets, sorted(spans))
            count += len(bare)
            first += [
                RowPosition(rows.topic, partition, int(offset), "inside no decided range")
                for offset in bare[: SHOWN - len(first)]
            ]
    return Violations(count, tuple(first))


def _outside(
    offsets: np.ndarray[tuple[int], np.dtype[np.int64]], spans: list[tuple[int, int]]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the offsets (sorted), from the first span on, that no span covers."""
    covered = np.zeros(len(offsets), bool)
    for start, last in spans:
        covered[np.searchsorted(offsets, start) : np.searchsorted(offsets, last, "right")] = True
    covered[: np.searchsorted(offsets, spans[0][0])] = True
    return offsets[~covered]


_TEXT_AT_MOST = 80
_KINDS = ("lost", "duplicated", "reordered", "unexpected")
Verdict = Literal["exact", "violated", "unknown"]
Order = Literal["kept", "broken", "not judged", "not asked"]


class Offender(msgspec.Struct, frozen=True):
    """One row that breaks a promise: ``kind`` is the name of the count it belongs to."""

    kind: str
    topic: str
    partition: int
    offset: int
    key: str | None
    id: str | None
    detail: str = ""


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of an audit, and what nobody can know: see ``verdict``.

    ``visible_undecided`` is None where no checkpoint was given, or a batch since its oldest promise
    was written with another guarantee. ``unexpected`` rows came out and never went in.
    ``open_rows`` are offsets between the last stable offset and the high watermark. ``given_up``
    rows are stepped over because a person has said so (``accept --skip-input``). ``unjudged`` is
    what the topics do not tell any more, or not yet. ``whole_until`` has, by topic and partition of
    the input, the offset before which every row has come out, and ``again`` how many rows behind
    that offset have come out, too: where a new checkpoint goes on, and how many rows then come
    twice. Both are None where the outputs do not tell. ``order`` is the verdict on the order.
    """

    format_version: int = 1
    input_topics: tuple[str, ...]
    output_topics: tuple[str, ...]
    rows_in: int
    rows_out: dict[str, int]
    lost: int
    duplicated: int
    reordered: int
    unexpected: int
    visible_undecided: int | None
    open_rows: int
    open_partitions: tuple[tuple[str, int], ...]
    unidentified: int
    matched: int
    given_up: int = 0
    unjudged: tuple[Unjudged, ...]
    offenders: tuple[Offender, ...]
    seconds: float
    whole_until: dict[str, dict[int, int]] | None = None
    again: int | None = None
    order: Order = "not judged"

    @property
    def violations(self) -> int:
        """The number of rows and partitions that break a promise."""
        return (
            self.lost
            + self.duplicated
            + self.reordered
            + self.unexpected
            + (self.visible_undecided or 0)
            + len(self.open_partitions)
        )

    @property
    def verdict(self) -> Verdict:
        """The verdict: ``violated``: a promise is broken; ``exact``: all is judged, and none is."""
        return "violated" if self.violations else "unknown" if self.unjudged else "exact"

    @property
    def ok(self) -> bool:
        """Whether every row was judged, and every promise holds."""
        return self.verdict == "exact"

    def summary(self) -> str:
        """Return the verdict and the counts as one line for logs."""
        return (
            f"{self.verdict}: {self.rows_in} rows in, {sum(self.rows_out.values())} out, "
            f"{self.matched} with a counterpart: lost {self.lost}, "
            f"duplicated {self.duplicated}, reordered {self.reordered}, "
            f"unexpected {self.unexpected}, visible undecided "
            f"{'not checked' if self.visible_undecided is None else self.visible_undecided}, "
            f"still open {self.open_rows}, given up by a person {self.given_up}, "
            f"order {self.order}" + "".join(f"; not known: {e.why}" for e in self.unjudged)
        )

    def require_ok(self) -> None:
        """Raise if a promise is broken, or if it is not known whether one is.

        Raises:
            AuditError: with the counts and the first offenders, or with what is not known, and what
                would tell it.
        """
        if self.verdict == "violated":
            shown = "; ".join(
                f"{o.kind} {o.topic}/{o.partition}@{o.offset} id {o.id}" for o in self.offenders[:5]
            )
            raise AuditError(f"{self.summary()}. First: {shown or 'transactions still open'}.")
        if self.verdict == "unknown":
            answers = dict.fromkeys(each.answer for each in self.unjudged)
            raise AuditError(f"{self.summary()}.", *(Remedy(change=each) for each in answers))

    def to_json(self) -> bytes:
        """Return the report as indented JSON."""
        said = {"verdict": self.verdict, "ok": self.ok}
        return msgspec.json.format(msgspec.json.encode(msgspec.to_builtins(self) | said), indent=2)


@checked
def audit(
    kafka: Mapping[str, object] | KafkaSettings,
    input_topic: Topics,
    output_topic: str,
    *,
    id_expression: str = "value.id",
    order_by: str = "key",
    dead_letter_topic: str | None = None,
    dead_letter_id: str | None = None,
    checkpoint: Place | None = None,
    storage_options: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> AuditReport:
    """Compare an input topic with the rows that came out of it, row by row.

    Args:
        kafka: A librdkafka-style configuration.
        input_topic: The topic or topics that the app reads. Nobody may be writing to them any more.
        output_topic: The topic that the app writes.
        id_expression: What names a row in both topics; see ``expression.parse``. A row without
            that part is named by its whole value.
        order_by: The key, in the input, within which the order must be kept; ``none``: nobody asks
            for the order.
        dead_letter_topic: Where malformed rows go; a row must be there or in the output.
        dead_letter_id: What names a row there, if not ``id_expression``.
        checkpoint: The app's checkpoint: then rows that no retained decision names are found, and
            rows that the query has not come to are told apart from lost ones.
        storage_options: obstore's configuration keys for the checkpoint's store.
        timeout_s: How long to wait for a broker that says nothing.

    Raises:
        ConfigurationError: An expression is wrong, or no row of the input has such a part; a topic
            is on both sides, or no query ever began at the checkpoint.
        TopicError, KafkaUnavailableError, CheckpointError: As they come.
    """
    started = time.monotonic()
    settings = kafka if isinstance(kafka, KafkaSettings) else KafkaSettings.from_librdkafka(kafka)
    identify, key_of = parse(id_expression), _key_of(order_by)
    inputs = [input_topic] if isinstance(input_topic, str) else list(dict.fromkeys(input_topic))
    names = {output_topic: identify}
    _require_apart(inputs, [output_topic, dead_letter_topic])
    if dead_letter_topic:
        names[dead_letter_topic] = parse(dead_letter_id) if dead_letter_id else identify
    store = None
    if checkpoint is not None:
        store = CheckpointStore.open(checkpoint, storage_options=storage_options)
        require_begun(store, read_state(store))
    # The input first: a row that a live app writes meanwhile is then unexpected at worst, not lost.
    given, came = (
        [
            read_topic(settings, topic, identify=how, key_of=key_of, timeout_s=timeout_s)
            for topic, how in topics
        ]
        for topics in ([(each, identify) for each in inputs], names.items())
    )
    for each in given:
        _require_named(each, id_expression)
    moved = [each.topic for each in given if not _at_rest(settings, each, timeout_s)]
    sources, undecided = Sources(), None
    if store is not None:
        # After the topics: every row that was visible then must have been decided before.
        sources = _sources(store, settings, inputs, timeout_s)
        undecided = _undecided(store, came)
    others = bool(moved or sources.others or sources.remade)
    compared = compare(given, came, read=sources.read, skipped=sources.skipped, others=others)
    meaningless = without_meaning(given, came, compared)
    found = {k: Violations(0) if k in meaningless else getattr(compared, k) for k in _KINDS}
    still_open = _still_open(came)
    said = {"expression": id_expression, "order_by": order_by}
    whole_until = None if "lost" in meaningless else compared.whole_until
    if undecided is not None:
        found["visible_undecided"] = undecided
    return AuditReport(
        input_topics=tuple(inputs),
        output_topics=tuple(names),
        rows_in=sum(len(each.ids) for each in given),
        rows_out={each.topic: len(each.ids) for each in came},
        **{kind: found[kind].count for kind in _KINDS},
        visible_undecided=None if undecided is None else undecided.count,
        open_rows=sum(still_open.values()),
        open_partitions=tuple(tp for tp, rows in still_open.items() if rows > 0),
        unidentified=sum(each.unidentified for each in given),
        matched=compared.matched,
        given_up=0 if "lost" in meaningless else compared.given_up,
        unjudged=unjudged(given, came, compared, sources=sources, moved=moved, **said),
        order=_order(found["reordered"].count, compared, order_by),
        whole_until=whole_until,
        again=None if whole_until is None else compared.again,
        offenders=tuple(_offenders(settings, found, dict.fromkeys(inputs, identify) | names)),
        seconds=round(time.monotonic() - started, 3),
    )


def _still_open(came: Sequence[TopicRows]) -> dict[tuple[str, int], int]:
    return {
        (each.topic, partition): end.high - end.stable
        for each in came
        for partition, end in each.ends.items()
    }


def _key_of(order_by: str) -> Extract:
    return (lambda _message: None) if order_by == NO_ORDER else parse(order_by)


def _order(reordered: int, compared: Comparison, order_by: str) -> Order:
    if order_by == NO_ORDER:
        return "not asked"
    if reordered:
        return "broken"
    return "kept" if compared.matched and not any(of_order(compared, order_by)) else "not judged"


def _at_rest(settings: KafkaSettings, read: TopicRows, timeout_s: float) -> bool:
    """Whether the topic has not changed since it was read."""
    with closing(reader(settings, "read_committed")) as consumer:
        return partition_ends(settings, consumer, read.topic, timeout_s) == read.ends


def _sources(
    store: CheckpointStore, settings: KafkaSettings, inputs: Sequence[str], timeout_s: float
) -> Sources:
    """Read from the checkpoint which input the query has read."""
    state, log = read_state(store), SparkLog(store)
    noted = store.read(TOPICS, SourceTopicIds)
    ids = noted.ids if noted is not None else {}
    known = {each: [ids[key] for key in ids if name_of(key) == each] for each in inputs}
    read: dict[tuple[str, int], tuple[int, int]] = {}
    others = []
    for source in state.sources:
        # A batch in flight is not delivered yet, or nobody has noted that it is.
        end = (source.start if state.in_flight is not None else source.end) or {}
        began = log.began(source.name)
        if source.kind != "kafka":
            others.append(f"source {source.index}")
        for topic, partitions in ((source.start or {}) | (source.end or {})).items():
            if topic not in inputs:
                others.append(topic)
            elif any(topic == name for name, _ in read) and not _is_one(known[topic]):
                others.append(f"{topic}, maybe of another cluster, in source {source.index}")
            for partition in partitions:
                until = end.get(topic, {}).get(partition, 0)
                # Where the beginning is lost, only rows that came out are known to have been read.
                first = until if began is None else began.get(topic, {}).get(partition, 0)
                least, most = read.get((topic, partition), (first, until))
                read[topic, partition] = (max(first, least), min(until, most))
    remade = [
        each
        for each in inputs
        if known[each] and topic_id(settings, each, timeout_s) not in known[each]
    ]
    skipped = [
        (each.topic, each.partition, each.first, each.last + 1)
        for each in skipped_input(store, inputs)
    ]
    return Sources(read=read, skipped=skipped, others=others, remade=remade)


def _is_one(ids: Sequence[str]) -> bool:
    """Whether a topic of several sources is one topic, and not two clusters' of one name."""
    return len(ids) > 1 and len(set(ids)) == 1


def _require_apart(inputs: Sequence[str], outputs: Sequence[str | None]) -> None:
    """Refuse a topic on both sides: compared with itself, it never lacks a row."""
    if both := sorted({*inputs} & {*outputs}):
        raise ConfigurationError(
            f"{', '.join(both)} is given as what is read and as what is written: each of its rows "
            "is its own counterpart, so nothing could be found.",
            Remedy(change="name the topic that the app reads, and then those that it writes"),
        )


def _require_named(source: TopicRows, expression: str) -> None:
    if len(source.ids) and source.unidentified == len(source.ids):
        raise ConfigurationError(
            f"None of the {len(source.ids)} rows of {source.topic} has a {expression!r}. Say what "
            "names a row: --id value.<field>, --id key or --id headers.<name>."
        )


def _retained(store: CheckpointStore) -> list[Decision]:
    log = DecisionLog(store)
    return [each for batch in batch_folders(store, DECISIONS) for each in log.of_batch(batch)]


def _undecided(store: CheckpointStore, came: Sequence[TopicRows]) -> Violations | None:
    decided = _retained(store)
    if _written_besides(store, decided):
        return None
    return visible_undecided(came, decided)


def _written_besides(store: CheckpointStore, decided: Sequence[Decision]) -> bool:
    """Whether a batch since the oldest promise was written with another guarantee, by no decision.

    Rows of such a batch are inside no range, and nobody did wrong. Beside a promise its mark says
    nothing.
    """
    promised = {each.batch_id for each in decided if each.offsets}
    unpromised = set(batch_folders(store, SPENT)) - promised
    return max(unpromised, default=-1) >= min(promised, default=0)


def _offenders(
    settings: KafkaSettings, found: Mapping[str, Violations], names: Mapping[str, Extract]
) -> Sequence[Offender]:
    """Read the first offending rows again, to show their keys and ids."""
    shown = []
    for kind, violations in found.items():
        for position in violations.first:
            message = peek(settings, position.topic, position.partition, position.offset)
            shown.append(
                Offender(
                    kind=kind,
                    topic=position.topic,
                    partition=position.partition,
                    offset=position.offset,
                    key=_text(message.key()) if message else None,
                    id=_text(names[position.topic](message)) if message else None,
                    detail=position.detail,
                )
            )
    return shown


def _text(data: bytes | str | None) -> str | None:
    if data is None:
        return None
    text = data if isinstance(data, str) else data.decode(errors="backslashreplace")
    if not text.isprintable():  # a terminal must not obey what comes from a topic
        text = text.encode("unicode_escape").decode()
    return text if len(text) <= _TEXT_AT_MOST else text[: _TEXT_AT_MOST - 1] + "…"
