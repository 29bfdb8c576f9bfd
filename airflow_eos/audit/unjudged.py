"""What an audit cannot know, why, and what would tell it; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_eos.audit.compare import Comparison
    from airflow_eos.audit.rows import TopicRows


class Unjudged(msgspec.Struct, frozen=True):
    """One thing that the audit was asked and has no answer to.

    ``rows`` is how many it is about, None where that is not known either; ``why`` what lacks, and
    ``answer`` what would give one.
    """

    why: str
    answer: str
    rows: int | None = None


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says of its input.

    ``read`` is which offsets of each (topic, partition) are delivered; ``skipped`` which of them,
    from the first to before the last, a person has given up; ``others`` what is read besides the
    topics of the audit; ``remade`` those of them that are not the topics that were read, by their
    ids.
    """

    read: Mapping[tuple[str, int], tuple[int, int]]
    skipped: Sequence[tuple[str, int, int, int]] = ()
    others: Sequence[str] = ()
    remade: Sequence[str] = ()


def unjudged(
    inputs: Sequence[TopicRows],
    outputs: Sequence[TopicRows],
    compared: Comparison,
    *,
    sources: Sources | None,
    moved: Sequence[str],
    expression: str,
) -> tuple[Unjudged, ...]:
    """All of it; an audit is exact only where this is empty.

    Args:
        inputs: what went in, as far as it is there.
        outputs: what came out, as far as it is there.
        compared: them, row by row.
        sources: what the checkpoint says, where one was given.
        moved: topics of the input that were written to, or cut off, while they were audited.
        expression: what names a row.
    """
    return (
        *_nothing_compared(inputs, outputs, compared, expression),
        *_not_there(inputs, outputs),
        *_of_rows(compared, moved),
        *_of_checkpoint(compared, sources),
    )


def without_meaning(
    inputs: Sequence[TopicRows], outputs: Sequence[TopicRows], compared: Comparison
) -> tuple[str, ...]:
    """The counts that say nothing, since what was compared are not the same rows.

    Where some are aggregated, or named otherwise, what differs is no loss and nothing out of
    nowhere, and the same id twice is no copy. Rows that carry an id, and whose counterparts have
    gone with the input's retention, are twice where they are twice.
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


def _of_checkpoint(compared: Comparison, sources: Sources | None) -> Iterator[Unjudged]:
    if sources is None:
        return
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
