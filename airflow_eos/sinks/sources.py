"""What a streaming query reads, asked of its plan before the first row.

A guarantee needs a source that gives the rows of a planned batch again. Which sources a query has
is Spark's to say, wherever in the query they stand: the leaves of its analysed plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_eos.sinks.port import Guarantee

log = structlog.get_logger(__name__)

_GONE_ONCE_READ = {
    "socket": "keeps what it has received in the driver's memory only",
}
_FAIL_ON_DATA_LOSS = "failondataloss"
_NAMES_TOPICS = ("subscribe", "subscribepattern", "assign")


@dataclass(frozen=True, slots=True)
class StreamSource:
    """One source of a query: Spark's short name, and its options, whose names are in lower case."""

    name: str
    options: Mapping[str, str]


def check_sources(df: DataFrame, guarantee: Guarantee) -> tuple[StreamSource, ...]:
    """Refuse what cannot be read again, and tell where a source may leave rows out.

    Returns:
        The sources.

    Raises:
        ConfigurationError: see :func:`require_replayable`.
    """
    sources = sources_of(df)
    require_replayable(sources, guarantee)
    for source in sources:
        if skips_lost(source):
            log.warning(
                "rows_may_be_skipped",
                source=source.name,
                topics=[source.options[name] for name in _NAMES_TOPICS if name in source.options],
                hint="failOnDataLoss is false: rows that are gone from the source before they are "
                "read are left out without an error. Leave it off for one start only.",
            )
    return sources


def skips_lost(source: StreamSource) -> bool:
    """Whether rows that are gone before they are read are left out without an error."""
    return source.options.get(_FAIL_ON_DATA_LOSS, "").lower() == "false"


def require_replayable(sources: Sequence[StreamSource], guarantee: Guarantee) -> None:
    """Refuse a source that gives its rows once, where the guarantee needs them twice.

    Not for at_most_once, which never asks for a row again. ``rate`` and ``rate-micro-batch`` can be
    read again: their rows are computed from the offsets, and ``rate`` keeps the moment that it
    counts from in the checkpoint.

    Raises:
        ConfigurationError: the first such source, and what to read instead.
    """
    if guarantee == "at_most_once":
        return
    for source in sources:
        why = _GONE_ONCE_READ.get(source.name)
        if why is not None:
            raise ConfigurationError(
                f"The query reads from the source {source.name!r}, which cannot be read again (it "
                f"{why}), and {guarantee} needs the rows of a batch again after a crash. Send them "
                "to a Kafka topic or to files and read these, or start it with "
                "guarantee='at_most_once'."
            )


def sources_of(df: DataFrame) -> tuple[StreamSource, ...]:
    """The streaming sources of ``df``, each as often as it is read.

    Raises:
        ConfigurationError: this Spark does not tell them.
    """
    try:
        leaves = df._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001 - not public
        found = [leaves.apply(number) for number in range(leaves.length())]
        # StreamingRelation (files) and StreamingRelationV2 (all others) of Spark 4.0 to 4.2.
        return tuple(
            StreamSource(str(leaf.sourceName()), _options(leaf))
            for leaf in found
            if leaf.isStreaming()
        )
    except Exception as error:
        raise ConfigurationError(
            "This Spark does not tell which sources the query reads (StreamingRelationV2). "
            "Expected Spark 4.0 to 4.2: use one of these, or a newer airflow-provider-eos."
        ) from error


def _options(leaf: object) -> dict[str, str]:
    """A copy of the source's options; none for files, whose relation has them elsewhere."""
    if not leaf.getClass().getSimpleName().endswith("V2"):  # type: ignore[attr-defined]
        return {}
    options = leaf.extraOptions()  # type: ignore[attr-defined]
    return {str(name).lower(): str(options.get(name)) for name in options.keySet()}
