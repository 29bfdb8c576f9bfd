"""The audit: does a ``read_committed`` reader have every row exactly once, in order, and no more?

It trusts nothing of the delivery: topics are read with librdkafka's consumer, decisions are read
as files. The input must be at rest: a row that the app has not come to yet counts as lost.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from airflow_eos.audit.compare import Violations, compare
from airflow_eos.audit.expression import Extract, parse
from airflow_eos.audit.reader import peek
from airflow_eos.audit.topic_rows import TopicRows, read_topic
from airflow_eos.audit.undecided import visible_undecided
from airflow_eos.checkpoint.decisions import DecisionLog
from airflow_eos.checkpoint.paths import DECISIONS
from airflow_eos.checkpoint.store import CheckpointStore
from airflow_eos.errors import AuditError, ConfigurationError
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.protocol.decision import Decision

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TEXT_AT_MOST = 80


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
    """What was counted. ``ok`` when every promise holds.

    ``visible_undecided`` is None where no checkpoint was given. ``unexpected`` rows came out and
    never went in; they are no violation where the input was already cut off by retention.
    ``open_rows`` are offsets between the last stable offset and the high watermark.
    """

    format_version: int = 1
    input_topic: str
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
    input_cut_off: bool
    offenders: tuple[Offender, ...]
    seconds: float

    @property
    def violations(self) -> int:
        """How many rows or partitions break a promise."""
        return (
            self.lost
            + self.duplicated
            + self.reordered
            + (0 if self.input_cut_off else self.unexpected)
            + (self.visible_undecided or 0)
            + len(self.open_partitions)
        )

    @property
    def ok(self) -> bool:
        """Whether every promise holds."""
        return self.violations == 0

    def summary(self) -> str:
        """One line for logs."""
        return (
            f"{self.rows_in} rows in, {sum(self.rows_out.values())} out: lost {self.lost}, "
            f"duplicated {self.duplicated}, reordered {self.reordered}, "
            f"unexpected {self.unexpected}, visible undecided "
            f"{'not checked' if self.visible_undecided is None else self.visible_undecided}, "
            f"still open {self.open_rows}"
        )

    def require_ok(self) -> None:
        """Raise if a promise is broken.

        Raises:
            AuditError: With the counts and the first offenders.
        """
        if not self.ok:
            shown = "; ".join(
                f"{o.kind} {o.topic}/{o.partition}@{o.offset} id {o.id}" for o in self.offenders[:5]
            )
            raise AuditError(f"{self.summary()}. First: {shown or 'transactions still open'}.")

    def to_json(self) -> bytes:
        """Indented JSON."""
        return msgspec.json.format(
            msgspec.json.encode(msgspec.to_builtins(self) | {"ok": self.ok}), indent=2
        )


def audit(
    kafka: Mapping[str, object] | KafkaSettings,
    input_topic: str,
    output_topic: str,
    *,
    id_expression: str = "value.id",
    order_by: str = "key",
    dead_letter_topic: str | None = None,
    dead_letter_id: str | None = None,
    checkpoint: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
) -> AuditReport:
    """Compare an input topic with what came out of it, row by row.

    Args:
        kafka: A librdkafka-style configuration.
        input_topic: What the app reads. Nobody may be writing to it any more.
        output_topic: What the app writes.
        id_expression: What names a row in both topics; see ``expression.parse``. A row without
            it is named by its whole value.
        order_by: The key, in the input, within which the order must be kept.
        dead_letter_topic: Where malformed rows go; a row must be in it or in the output.
        dead_letter_id: What names a row there, if it is not ``id_expression``.
        checkpoint: The app's checkpoint: then rows that no retained decision names are found.
        storage_options: obstore's configuration keys for the checkpoint's store.
        timeout_s: How long to wait for a broker that says nothing.

    Raises:
        ConfigurationError: An expression is wrong, or no row of the input has such a part.
        TopicError, KafkaUnavailableError, CheckpointError: As they come.
    """
    started = time.monotonic()
    settings = kafka if isinstance(kafka, KafkaSettings) else KafkaSettings.from_librdkafka(kafka)
    identify, key_of = parse(id_expression), parse(order_by)
    names = {input_topic: identify, output_topic: identify}
    if dead_letter_topic:
        names[dead_letter_topic] = parse(dead_letter_id) if dead_letter_id else identify
    # The input first: what a live app writes meanwhile is then unexpected at worst, not missed.
    source, *outputs = [
        read_topic(settings, topic, identify=how, key_of=key_of, timeout_s=timeout_s)
        for topic, how in names.items()
    ]
    _require_named(source, id_expression)
    found: dict[str, Violations] = {}
    compared = compare(source, outputs)
    for kind in ("lost", "duplicated", "reordered", "unexpected"):
        found[kind] = getattr(compared, kind)
    if checkpoint is not None:
        # After the topics: whatever was visible then must have been decided before.
        decisions = _retained(CheckpointStore.open(checkpoint, storage_options=storage_options))
        found["visible_undecided"] = visible_undecided(outputs, decisions)
    return AuditReport(
        input_topic=input_topic,
        output_topics=tuple(each.topic for each in outputs),
        rows_in=len(source.ids),
        rows_out={each.topic: len(each.ids) for each in outputs},
        lost=found["lost"].count,
        duplicated=found["duplicated"].count,
        reordered=found["reordered"].count,
        unexpected=found["unexpected"].count,
        visible_undecided=found["visible_undecided"].count if checkpoint is not None else None,
        open_rows=sum(e.high - e.stable for each in outputs for e in each.ends.values()),
        open_partitions=tuple(
            (each.topic, partition)
            for each in outputs
            for partition, end in each.ends.items()
            if end.high > end.stable
        ),
        unidentified=source.unidentified,
        input_cut_off=any(end.low > 0 for end in source.ends.values()),
        offenders=tuple(_offenders(settings, found, names)),
        seconds=round(time.monotonic() - started, 3),
    )


def _require_named(source: TopicRows, expression: str) -> None:
    if len(source.ids) and source.unidentified == len(source.ids):
        raise ConfigurationError(
            f"None of the {len(source.ids)} rows of {source.topic} has a {expression!r}. Say what "
            "names a row: --id value.<field>, --id key or --id headers.<name>."
        )


def _retained(store: CheckpointStore) -> list[Decision]:
    log = DecisionLog(store)
    batches = sorted(
        int(name) for name in store.folders(DECISIONS) if name.isascii() and name.isdigit()
    )
    return [decision for batch in batches for decision in log.of_batch(batch)]


def _offenders(
    settings: KafkaSettings, found: Mapping[str, Violations], names: Mapping[str, Extract]
) -> Sequence[Offender]:
    """Fetch the first offending rows again, to show what they are called."""
    shown = []
    for kind, violations in found.items():
        for place in violations.first:
            message = peek(settings, place.topic, place.partition, place.offset)
            shown.append(
                Offender(
                    kind=kind,
                    topic=place.topic,
                    partition=place.partition,
                    offset=place.offset,
                    key=_text(message.key()) if message else None,
                    id=_text(names[place.topic](message)) if message else None,
                    detail=place.detail,
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
