"""What the doctor says of each thing that can be known before a start; pure: facts in, lines out.

``fail`` is what a start would refuse, or die of; ``warn`` is what a person should know of first.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

from airflow_eos.checkpoint.locations import HDFS, LOCAL, located
from airflow_eos.checkpoint.store import told
from airflow_eos.errors import EosError, Remedy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_eos.checkpoint.heartbeat import Heartbeat
    from airflow_eos.checkpoint.pipeline import Pipeline
    from airflow_eos.checkpoint.progress import CheckpointState
    from airflow_eos.checkpoint.store import RaceResult
    from airflow_eos.protocol.participant import Admission, StartFacts
    from airflow_eos.sinks.port import Guarantee

Verdict = Literal["ok", "warn", "fail"]

CLOCKS_APART_MS = 5_000
"""Heartbeats are told by their age: clocks further apart make a live driver look silent."""


class Line(NamedTuple):
    """One line of the table: what was looked at, and what it means."""

    what: str
    verdict: Verdict
    found: str
    expected: str = ""
    next: str = ""
    remedies: tuple[Remedy, ...] = ()


def failed(what: str, error: EosError) -> Line:
    """A probe that an error ended; its message says all three already."""
    return Line(what, "fail", str(error), remedies=error.remedies)


def raced(found: RaceResult) -> Line:
    """Whether one create wins, of all who come at once."""
    if found.is_exclusive:
        return Line("create-if-absent", "ok", f"{told(found)}, {found.racers} at once")
    return Line(
        "create-if-absent",
        "fail",
        told(found),
        "one winner in each, or two drivers could both decide a batch",
        "keep the checkpoint on a disk, HDFS, S3, GCS or Azure",
    )


def sparks_own_logs(location: str, guarantee: Guarantee | None) -> Line:
    """Whether Spark's own files are created exclusively there, which our decisions do not need.

    ``guarantee`` is what is going to be asked for, None where nobody has said.
    """
    what = "Spark's own logs"
    scheme = located(location).scheme
    if scheme == HDFS:
        return Line(what, "ok", "exclusive: a rename that refuses to replace")
    how = "renames" if scheme == LOCAL else "copies, or renames"
    found = f"not exclusive on {scheme}: Spark looks, then {how}; of two drivers the later one wins"
    if guarantee == "exactly_once":
        harmless = "harmless: each start puts offsets/N right by the decisions"
        return Line(what, "ok", found, harmless)
    # A disk has few drivers that can see it; of who has asked for the guarantee each one is told.
    return Line(
        what,
        "ok" if guarantee is None and scheme == LOCAL else "warn",
        found,
        "harmless with exactly_once alone: its decisions put offsets/N right",
        "without decisions see to it that one driver runs at a time; --guarantee says which it is",
    )


def sparks_raced(found: RaceResult) -> Line:
    """What Spark's own file manager did, where it was asked."""
    said = f"Spark's file manager: {told(found)}, {found.racers} at once"
    if found.is_exclusive:
        return Line("Spark's own logs, raced", "ok", said)
    return Line(
        "Spark's own logs, raced",
        "warn",
        said,
        "one winner in each; harmless with exactly_once alone",
        "without decisions see to it that one driver runs at a time",
    )


def clocks(what: str, difference_ms: int) -> Line:
    """How far the clock of a store or a broker is from this machine's."""
    found = f"{difference_ms / 1000:+.1f} s against this machine"
    if abs(difference_ms) <= CLOCKS_APART_MS:
        return Line(what, "ok", found)
    expected = f"at most {CLOCKS_APART_MS / 1000:g} s apart, or ages and times left are misread"
    return Line(what, "warn", found, expected, "set the clocks right (NTP) on all machines")


def driver(heartbeat: Heartbeat | None, signs: tuple[str, ...]) -> Line:
    """Whether somebody runs it now, as he was seen to."""
    if signs:
        return Line(
            "driver", "warn", "; ".join(signs), "none: a start supersedes it", "drain it first"
        )
    if heartbeat is None:
        return Line("driver", "ok", "none has run here")
    term = "" if heartbeat.term is None else f", term {heartbeat.term}"
    return Line("driver", "ok", f"none; the last one is {heartbeat.phase!r}{term}")


def progress(state: CheckpointState) -> Line:
    """How far the checkpoint is."""
    if state.latest_offsets is None:
        return Line("checkpoint", "ok", "new: no batch was planned")
    committed = "none" if state.latest_commit is None else state.latest_commit
    flying = "" if state.in_flight is None else f"; batch {state.in_flight} is in flight"
    return Line("checkpoint", "ok", f"newest complete batch {committed}{flying}")


def owner(pipeline: Pipeline | None, *, prefix: str | None, cluster_id: str | None) -> Line:
    """Whose checkpoint it is, held against the prefix and the cluster that were asked for."""
    if pipeline is None:
        return Line("owner", "ok", "nobody yet: the first start writes eos/pipeline.json")
    found = "; ".join(map(str, pipeline.participants))
    kafka = [each for each in pipeline.participants if each.kind == "kafka"]
    asked = {"cluster_id": cluster_id, "transactional_id_prefix": prefix}
    for name, value in asked.items():
        theirs = {each.address[name] for each in kafka if name in each.address}
        if value is not None and theirs and value not in theirs:
            return Line(
                "owner",
                "fail",
                found,
                f"{name} {value!r}",
                "use the pipeline's own, or an empty checkpoint",
            )
    return Line("owner", "ok", found)


def start_on(what: str, verdict: Admission, facts: StartFacts) -> Line:
    """Whether a start is let in, by the gate that the start itself asks."""
    if verdict.error is not None:
        known = "" if verdict.known else "it is not known whether a start is let in: "
        return Line(what, "fail", f"{known}{verdict.error}", remedies=verdict.error.remedies)
    if verdict.remarks:
        return Line(what, "warn", "; ".join(verdict.remarks))
    pipeline = facts.asking.pipeline
    if not all(each.knows(pipeline) for each in facts.names):
        return Line(what, "ok", "nobody's: the first start claims it")
    notes = [each.newest(pipeline) for each in facts.names]
    batches = [note.batch for note in notes if note is not None]
    batch = f"batch {min(batches)}" if batches else "no batch"
    return Line(what, "ok", f"this checkpoint's, {batch} delivered")


def budget(
    *,
    timeout: timedelta,
    trigger: timedelta,
    batch: timedelta,
    recovery: timedelta,
    broker_max: timedelta | None,
) -> Line:
    """The chain of timeouts, by the sink's own rule."""
    from airflow_eos.sinks.kafka.preflight import allowed, check_timeouts

    try:
        check_timeouts(
            timeout=timeout,
            trigger=trigger,
            batch=batch,
            recovery=recovery,
            broker_max=broker_max,
        )
    except EosError as error:
        return failed("timeouts", error)
    needed = trigger + batch + recovery
    found = f"transaction timeout {_s(timeout)}, needed {_s(needed)}, {allowed(broker_max)}"
    return Line("timeouts", "ok", found)


def java(version: int | None, minimum: int) -> Line:
    """The Java of this machine."""
    if version is not None and version >= minimum:
        return Line("Java", "ok", str(version))
    found = "none" if version is None else str(version)
    return Line("Java", "warn", found, f"{minimum} or later", "install it where the driver runs")


def spark(version: str | None, connectors: Sequence[str]) -> Line:
    """The pyspark of this machine, and whether its Kafka connector's jars are known."""
    if version is None:
        return Line(
            "Spark", "warn", "no pyspark here", "one where the driver runs", "install pyspark"
        )
    minor = ".".join(version.split(".")[:2])
    if any(each.startswith(f"{minor}.") for each in connectors):
        return Line("Spark", "ok", f"pyspark {version}, connector jars listed")
    return Line(
        "Spark",
        "warn",
        f"pyspark {version}",
        f"one whose connector is listed: {', '.join(connectors)}",
        f"--packages org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",
    )


def worst(lines: Sequence[Line]) -> Verdict:
    """The gravest verdict of all."""
    found = {line.verdict for line in lines}
    return "fail" if "fail" in found else "warn" if "warn" in found else "ok"


def _s(span: timedelta) -> str:
    return f"{span.total_seconds():g} s"
