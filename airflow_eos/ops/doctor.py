"""The checks of ``airflow-eos doctor`` before a start; the functions that judge facts are pure.

``fail``: a start would refuse, or die of it; ``warn``: a person should know of it first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Literal, NamedTuple

from airflow_eos.core.checkpoint import CheckpointStore, read_heartbeat, read_pipeline, read_state
from airflow_eos.core.checkpoint.heartbeat import Heartbeat
from airflow_eos.core.checkpoint.liveness import signs_of_life
from airflow_eos.core.checkpoint.locations import (
    HDFS,
    KEPT,
    LOCAL,
    is_temporary,
    located,
    way_out_of_temporary,
)
from airflow_eos.core.checkpoint.pipeline import PipelineIdentity
from airflow_eos.core.checkpoint.progress import CheckpointState
from airflow_eos.core.checkpoint.repartition import require_finished
from airflow_eos.core.checkpoint.snapshot import admitted
from airflow_eos.core.checkpoint.store import RaceResult, race_create, read_clock, sentence_of
from airflow_eos.core.checkpoint.watchdog_record import missed_looks
from airflow_eos.core.protocol.decision import Guarantee
from airflow_eos.core.protocol.participant import Admission, StartFacts
from airflow_eos.core.recovery.execute import plan_recovery
from airflow_eos.errors import EosError, LocalEnvironmentError, Remedy, advice
from airflow_eos.kafka.client.cluster import TWO_PHASE, TWO_PHASE_SETTING, BrokerCapabilities
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.consumer_groups import GroupCoordinator
from airflow_eos.kafka.client.offsets import cluster_clock_ms
from airflow_eos.kafka.client.settings import KafkaSettings, require_java_reads
from airflow_eos.kafka.preflight import allowed, longest_timeout, require_transaction_log
from airflow_eos.kafka.transactions.coordinator import require_right_to_end
from airflow_eos.kafka.transactions.group_offsets import transactional_id
from airflow_eos.kafka.transactions.identity import BY_ROW
from airflow_eos.kafka.transactions.listing import untimed
from airflow_eos.local.jars import MINIMUM_JAVA, java_version, locked_versions, pyspark_version
from airflow_eos.ops.supervision.preflight import TimeoutBudget, of_prefix
from airflow_eos.ops.supervision.progress import HELD_UP_AFTER_MS, outputs_of

Verdict = Literal["ok", "warn", "fail"]

CLOCKS_APART_MS = 5_000
"""The most that clocks may differ; further apart, a live driver looks silent by its age."""


class Line(NamedTuple):
    """One line of the doctor's table: the subject, the verdict and what was found."""

    what: str
    verdict: Verdict
    found: str
    expected: str = ""
    next: str = ""
    remedies: tuple[Remedy, ...] = ()


def failed(what: str, error: EosError, before: str = "") -> Line:
    """Make the line of a probe that raised: the error's advice is ``next``, the rest ``found``."""
    todo = advice(error.remedies)
    found = str(error).removesuffix(todo).rstrip()
    return Line(what, "fail", f"{before}{found}", next=todo, remedies=error.remedies)


def raced(found: RaceResult) -> Line:
    """Report whether exactly one of several concurrent creates of a file wins in the store."""
    if found.is_exclusive:
        return Line("create-if-absent", "ok", f"{sentence_of(found)}, {found.racers} at once")
    return Line(
        "create-if-absent",
        "fail",
        sentence_of(found),
        "one winner in each, or two drivers could both decide a batch",
        "keep the checkpoint on a disk, HDFS, S3, GCS or Azure",
    )


def folder(location: str, *, begun: bool) -> Line:
    """Report whether the checkpoint folder outlives this machine's next boot."""
    if not is_temporary(location):
        return Line("folder", "ok", "no temporary one")
    way_out = way_out_of_temporary(begun=begun)
    return Line("folder", "warn", f"{location} is a temporary folder", KEPT, way_out)


def sparks_own_logs(location: str, guarantee: Guarantee | None) -> Line:
    """Report whether Spark creates its own logs exclusively there, which our decisions do not need.

    ``guarantee`` is the one that the app is going to ask for; None where it is not known.
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
    # Few drivers can see one disk, so it is no warning unless another guarantee was asked for.
    return Line(
        what,
        "ok" if guarantee is None and scheme == LOCAL else "warn",
        found,
        "harmless with exactly_once alone: its decisions put offsets/N right",
        "without decisions see to it that one driver runs at a time; --guarantee says which it is",
    )


def sparks_raced(found: RaceResult) -> Line:
    """Report whether one create wins in Spark's own file manager, where that was raced."""
    said = f"Spark's file manager: {sentence_of(found)}, {found.racers} at once"
    if found.is_exclusive:
        return Line("Spark's own logs, raced", "ok", said)
    return Line(
        "Spark's own logs, raced",
        "warn",
        said,
        "one winner in each; harmless with exactly_once alone",
        "without decisions see to it that one driver runs at a time",
    )


def protocol(brokers: BrokerCapabilities) -> Line:
    """Report which of the needed transaction features the brokers have, as far as they tell."""
    brokers.require()
    if remarks := brokers.remarks():
        return Line("protocol", "warn", "; ".join(remarks), "all of it, or know what is unproven")
    found = f"all that is needed, transaction version {brokers.transaction_version}"
    return Line("protocol", "ok", found)


def clocks(what: str, difference_ms: int) -> Line:
    """Report how far the clock of a store or a broker is from this machine's."""
    found = f"{difference_ms / 1000:+.1f} s against this machine"
    if abs(difference_ms) <= CLOCKS_APART_MS:
        return Line(what, "ok", found)
    expected = f"at most {CLOCKS_APART_MS / 1000:g} s apart, or ages and times left are misread"
    return Line(what, "warn", found, expected, "set the clocks right (NTP) on all machines")


def driver(heartbeat: Heartbeat | None, signs: tuple[str, ...]) -> Line:
    """Report whether a driver runs the checkpoint now, by the signs of life that were seen."""
    if signs:
        return Line(
            "driver", "warn", "; ".join(signs), "none: a start supersedes it", "drain it first"
        )
    if heartbeat is None:
        return Line("driver", "ok", "none has run here")
    term = "" if heartbeat.term is None else f", term {heartbeat.term}"
    return Line("driver", "ok", f"none; the last one is {heartbeat.phase!r}{term}")


def watchdog(missed: str | None) -> Line:
    """Report that nobody watches the driver any more, where a watchdog has."""
    if missed is None:
        return Line("watchdog", "ok", "no look of one is missed")
    return Line("watchdog", "warn", missed, "a look each interval", "unpause it")


def progress(state: CheckpointState) -> Line:
    """Report the newest complete batch of the checkpoint, and the one in flight."""
    if state.latest_offsets is None:
        return Line("checkpoint", "ok", "new: no batch was planned")
    committed = "none" if state.latest_commit is None else state.latest_commit
    flying = "" if state.in_flight is None else f"; batch {state.in_flight} is in flight"
    return Line("checkpoint", "ok", f"newest complete batch {committed}{flying}")


def owner(
    pipeline: PipelineIdentity | None,
    *,
    prefix: str | None,
    cluster_id: str | None,
    readable: bool = True,
) -> Line:
    """Report which pipeline owns the checkpoint; fail where its prefix or cluster is another.

    ``readable``: whether the checkpoint was read, so that ``pipeline`` None means a new one.
    """
    if not readable:
        return Line("owner", "warn", "not known", "a checkpoint that can be read", "see store")
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
    """Report whether a start would be admitted, by the gate that the start itself asks."""
    if verdict.error is not None:
        known = "" if verdict.known else "it is not known whether a start is let in: "
        return failed(what, verdict.error, known)
    if verdict.remarks:
        return Line(what, "warn", "; ".join(verdict.remarks))
    pipeline = facts.asking.pipeline
    if not all(each.knows(pipeline) for each in facts.names):
        return Line(what, "ok", "nobody's: the first start claims it")
    notes = [each.newest(pipeline) for each in facts.names]
    batches = [note.batch for note in notes if note is not None]
    batch = f"batch {min(batches)}" if batches else "no batch"
    return Line(what, "ok", f"this checkpoint's, {batch} delivered")


def timeouts(budget: TimeoutBudget, broker_max: timedelta | None) -> Line:
    """Check the chain of timeouts by the sink's own rule (TimeoutBudgetError)."""
    budget.check(broker_max)
    needed = budget.trigger_interval + budget.batch_within + budget.recover_within
    timeout_s, needed_s = budget.transaction_timeout.total_seconds(), needed.total_seconds()
    found = f"transaction timeout {timeout_s:g} s, needed {needed_s:g} s, {allowed(broker_max)}"
    return Line("timeouts", "ok", found)


def java(version: int | None, minimum: int) -> Line:
    """Report whether the Java of this machine is new enough."""
    if version is not None and version >= minimum:
        return Line("Java", "ok", str(version))
    found = "none" if version is None else str(version)
    return Line("Java", "warn", found, f"{minimum} or later", "install it where the driver runs")


def spark(version: str | None, connectors: Sequence[str]) -> Line:
    """Report the pyspark of this machine, and whether its Kafka connector's jars are listed."""
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
    """Return the gravest verdict of the lines."""
    found = {line.verdict for line in lines}
    return "fail" if "fail" in found else "warn" if "warn" in found else "ok"


# --- rights ---------------------------------------------------------------------------------------
# Numbers are those of ``org.apache.kafka.common.acl.AclOperation``. A broker without an authorizer
# tells all operations; one that is asked in an old API version tells none.


Right = Literal["Read", "Write"]

OPERATIONS: dict[Right, int] = {"Read": 3, "Write": 4}
_DONE: dict[Right, str] = {"Read": "read", "Write": "written"}
SPARKS_GROUPS = "spark-kafka-source"
"""The prefix of the group ids of Spark's Kafka source, unless ``groupIdPrefix`` is set."""


_UNTOLD = "the broker does not tell rights"
_SEEN = "the first batch shows it"


def topic(
    name: str, partitions: int, operations: Collection[int] | None, needed: Right = "Write"
) -> Line:
    """Report a topic's partitions, and whether these credentials have the needed right on it."""
    what = f"topic {name}"
    count = f"{partitions} partition{'s' if partitions != 1 else ''}"
    if not operations:  # not told: the right to describe at least would be among them
        return Line(what, "warn", f"{count}; {_UNTOLD}", needed, _SEEN)
    if OPERATIONS[needed] not in operations:
        return Line(
            what,
            "fail",
            f"{count}; no right to {needed.lower()}",
            f"{needed} on the topic",
            f"kafka-acls --add --allow-principal … --operation {needed} --topic {name}",
        )
    return Line(what, "ok", f"{count}; may be {_DONE[needed]}")


def group(name: str, operations: Collection[int] | None) -> Line:
    """Report the right to read, and to set offsets of, the group that shows the progress."""
    what = f"group {name}"
    if not operations:
        return Line(what, "warn", _UNTOLD, "Read on the group", _SEEN)
    if OPERATIONS["Read"] in operations:
        return Line(what, "ok", "may be read, and its offsets set")
    return Line(
        what,
        "fail",
        "no right to read",
        "Read on the group",
        f"kafka-acls --add --allow-principal … --operation Read --group {name}",
    )


def sparks_group(found: Line) -> Line:
    """Return the line of Spark's own groups: a warning, as a query may name others, or use none."""
    if found.verdict != "fail":
        said = "may be read" if found.verdict == "ok" else found.found
        return found._replace(what="Spark's groups", found=said)
    return Line(
        "Spark's groups",
        "warn",
        f"no right to read {SPARKS_GROUPS}-…",
        "Read on them, where Spark's Kafka source reads; ArrowKafkaSource needs no group",
        "kafka-acls --add --allow-principal … --operation Read "
        f"--group {SPARKS_GROUPS} --resource-pattern-type prefixed",
    )


@dataclass(frozen=True, slots=True)
class DoctorRequest:
    """The checkpoint and Kafka resources that the doctor is to check.

    ``topics`` are written, ``inputs`` read. ``group`` shows the progress, None where no group does.
    ``guarantee`` None: exactly_once, where the checkpoint has decisions. ``rounds``: of the store's
    create race; ``settings``: of the Kafka cluster, None where there is no Kafka.
    """

    checkpoint: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    settings: KafkaSettings | None = None
    reach: Mapping[str, Any] | None = field(default=None, repr=False)
    topics: Sequence[str] = ()
    inputs: Sequence[str] = ()
    group: str | None = None
    prefix: str | None = None
    guarantee: Guarantee | None = None
    budget: TimeoutBudget = field(default_factory=TimeoutBudget)
    rounds: int = 40
    timeout_s: float = 30.0


def tried(what: str, probe: Callable[[], Line | None], ok: str = "") -> list[Line]:
    """Run a probe and return its line, or what is ``ok``; an EosError becomes a failed line."""
    try:
        return [probe() or Line(what, "ok", ok)]
    except EosError as error:
        return [failed(what, error)]


# --- kafka examination ----------------------------------------------------------------------------
# The doctor's probes of a Kafka cluster. They change nothing there.


def of_kafka(
    request: DoctorRequest,
    settings: KafkaSettings,
    store: CheckpointStore,
    pipeline: PipelineIdentity | None,
    *,
    readable: bool,
) -> list[Line]:
    """Check a Kafka cluster: identity, clock, features, timeouts, and these credentials' rights."""
    try:
        wire = ConnectionPool(settings, timeout_s=request.timeout_s)
    except EosError as error:
        return [failed("broker", error)]
    with wire:
        brokers = len(wire.cluster.brokers())
        lines = [Line("broker", "ok", f"cluster {wire.cluster_id}, {brokers} alive")]
        prefix = request.prefix or _prefix_of(pipeline)
        cluster = wire.cluster_id
        owned = owner(pipeline, prefix=request.prefix, cluster_id=cluster, readable=readable)
        lines.append(owned)
        lines += tried("broker's clock", lambda: _cluster_clock(wire))
        if request.guarantee in {None, "exactly_once"}:
            lines += tried("protocol", lambda: protocol(wire.cluster.capabilities()))
        lines += tried("transactions", lambda: _transaction_log(wire))
        lines += tried("two-phase", lambda: _two_phase(wire, prefix))
        lines += tried("timeouts", lambda: timeouts(request.budget, longest_timeout(wire)))
        if request.inputs and settings.security_protocol.endswith("SSL"):
            lines += tried("Spark's Kafka client", lambda: _for_java(settings))
        for name, needed in _topics(request, pipeline, cluster):
            lines += tried(f"topic {name}", partial(_topic, wire, name, needed))
        if prefix is not None and owned.verdict != "fail":  # else nothing was promised under it
            lines += tried(f"prefix {prefix}", lambda: _prefix(request, settings, prefix, store))
        lines += _rights(request, wire, prefix)
    return lines


def _topics(
    request: DoctorRequest, pipeline: PipelineIdentity | None, cluster_id: str
) -> list[tuple[str, Right]]:
    """Return the topics to look at: those asked for, and each that the pipeline delivers to."""
    delivers = (each for each in outputs_of(pipeline, cluster_id).values() if each != BY_ROW)
    written = dict.fromkeys((*request.topics, *delivers))
    return [
        *((name, "Write") for name in written),
        *((name, "Read") for name in request.inputs),
    ]


def _rights(request: DoctorRequest, wire: ConnectionPool, prefix: str | None) -> list[Line]:
    """Check the rights on transactional ids and groups; those on topics come with each topic."""
    lines: list[Line] = []
    # An id that no task has: the right is granted by prefix.
    with_ids = prefix is not None and request.guarantee in {None, "exactly_once"}
    ids = [f"{prefix}-doctor"] if with_ids else []
    if request.inputs:
        name = f"{SPARKS_GROUPS}-doctor"
        found = tried(name, lambda: _group(GroupCoordinator(wire, name), request.timeout_s))
        lines += map(sparks_group, found)
    if request.group is not None:
        ids.append(transactional_id(request.group))
        members = GroupCoordinator(wire, request.group)
        lines += tried(f"group {request.group}", lambda: _group(members, request.timeout_s))
    for each in ids:
        probe = partial(require_right_to_end, wire, each, deadline_s=request.timeout_s)
        lines += tried(f"id {each}", probe, "its transactions may be taken and ended")
    return lines


def _group(coordinator: GroupCoordinator, timeout_s: float) -> Line:
    return group(coordinator.group, coordinator.rights(deadline_s=timeout_s))


def _cluster_clock(wire: ConnectionPool) -> Line:
    before_ms = time.time_ns() // 1_000_000
    told_ms = cluster_clock_ms(wire)
    after_ms = time.time_ns() // 1_000_000
    if told_ms is None:
        return Line("broker's clock", "ok", "not told: it takes Describe on Cluster, and KRaft")
    return clocks("broker's clock", told_ms - min(max(before_ms, told_ms), after_ms))


def _transaction_log(wire: ConnectionPool) -> Line:
    require_transaction_log(wire)
    return Line("transactions", "ok", "nothing that is known forbids them")


def _two_phase(wire: ConnectionPool, prefix: str | None) -> Line:
    """Report whether transactions without a timer are offered, and those that stay open."""
    now_ms = cluster_clock_ms(wire) or time.time_ns() // 1_000_000
    still_open = [] if prefix is None else untimed(wire, prefix)
    held = [each for each in still_open if now_ms - each.started_at_ms > HELD_UP_AFTER_MS]
    if held:
        found = f"{len(held)} transactions that no timer ends are open, first {held[0].identity}"
        return Line("two-phase", "warn", found, "none, or readers wait", "airflow-eos recover")
    told = wire.cluster.capabilities()
    speaks, setting = told.of(TWO_PHASE), told.settings.get(TWO_PHASE_SETTING, "not told")
    found = f"{TWO_PHASE_SETTING} is {setting}" if speaks.version is not None else str(speaks)
    return Line("two-phase", "ok", found, "needed by KafkaSink(two_phase=True) alone")


def _for_java(settings: KafkaSettings) -> Line:
    """Check that the Java client of Spark's Kafka source can use these settings."""
    require_java_reads(settings.librdkafka(), java_version())
    settings.spark_options()
    return Line("Spark's Kafka client", "ok", "its key is in a form that Java reads")


def _topic(wire: ConnectionPool, name: str, needed: Right) -> Line:
    partitions = len(wire.cluster.leaders(name))
    described = wire.cluster.describe_topic(name, rights=True)
    return topic(name, partitions, described.authorized_operations, needed)


def _prefix(
    request: DoctorRequest, settings: KafkaSettings, prefix: str, store: CheckpointStore
) -> Line:
    with closing(of_prefix(settings, prefix, store, timeout_s=request.timeout_s)) as participant:
        line = start_on(f"prefix {prefix}", *admitted(store, participant))
        theirs = [each for each in participant.open() if each.whose]
    if line.verdict != "ok" or not theirs:
        return line
    first = f"{theirs[0].key} ({theirs[0].whose})"
    return Line(
        line.what,
        "warn",
        f"{line.found}; {len(theirs)} open transactions have ids like its own and are another "
        f"program's, first {first}: give that program another prefix",
    )


def _prefix_of(pipeline: PipelineIdentity | None) -> str | None:
    members = pipeline.participants if pipeline is not None else ()
    return next(
        (each.address.get("transactional_id_prefix") for each in members if each.kind == "kafka"),
        None,
    )


# --- examination ----------------------------------------------------------------------------------
# Each probe asks one system, and a failed probe does not keep the others from running.


def examine(request: DoctorRequest) -> list[Line]:
    """Run all probes and return their lines; a problem is a line and no error.

    Raises:
        ConfigurationError, StoreError: the location or its options cannot be opened at all.
    """
    store = CheckpointStore.open(request.checkpoint, storage_options=request.storage_options)
    lines = [java(java_version(), MINIMUM_JAVA), _spark()]
    pipeline: PipelineIdentity | None = None
    readable, began = False, time.monotonic()
    try:
        pipeline = read_pipeline(store)
    except EosError as error:
        lines.append(failed("store", error))
    else:
        readable = True
        reached_ms = (time.monotonic() - began) * 1000
        lines.append(Line("store", "ok", f"{store.location} answered in {reached_ms:.0f} ms"))
        chosen = request.guarantee or (None if pipeline is None else "exactly_once")
        lines += _of_store(store, request.rounds, chosen, begun=pipeline is not None)
    if request.settings is None:
        lines.append(owner(pipeline, prefix=request.prefix, cluster_id=None, readable=readable))
    else:
        lines += of_kafka(request, request.settings, store, pipeline, readable=readable)
    if pipeline is not None and (request.settings is not None or request.reach is not None):
        lines += tried("participants", lambda: _participants(request))
    return lines


def _of_store(
    store: CheckpointStore, rounds: int, guarantee: Guarantee | None, *, begun: bool
) -> list[Line]:
    lines: list[Line] = []
    with store.left_as_it_was():
        lines += tried("create-if-absent", lambda: raced(race_create(store, rounds=rounds)))
        lines += tried("store's clock", lambda: _clock(store))
    lines.append(folder(store.location, begun=begun))
    lines.append(sparks_own_logs(store.location, guarantee))
    lines += tried("checkpoint", lambda: _progress(store))
    lines += tried("driver", lambda: driver(read_heartbeat(store), signs_of_life(store) or ()))
    lines += tried("watchdog", lambda: watchdog(missed_looks(store)))
    return lines


def _progress(store: CheckpointStore) -> Line:
    require_finished(store)
    return progress(read_state(store))


def _clock(store: CheckpointStore) -> Line:
    """Compare the store's clock with ours, by the modification time of an object just written."""
    before_ms, told_ms, after_ms = read_clock(store)
    if told_ms is None:
        return Line("store's clock", "fail", "a new object is not there", "it reads its own writes")
    off_ms = min(max(before_ms - 1000, told_ms), after_ms)  # S3 says whole seconds
    return clocks("store's clock", told_ms - off_ms)


def _participants(request: DoctorRequest) -> Line:
    made = plan_recovery(
        request.checkpoint,
        request.settings,
        reach=request.reach,
        storage_options=request.storage_options,
        timeout_s=request.timeout_s,
    )
    if made.refusal is not None:
        return Line("participants", "fail", f"a start is refused: {made.refusal}")
    found = f"all answer; {len(made.listed)} left open, {len(made.steps)} steps to recover"
    if made.needs_person:
        return Line("participants", "fail", found, "nothing to decide by hand", "airflow-eos plan")
    return Line("participants", "ok", found)


def _spark() -> Line:
    try:
        version = pyspark_version()
    except LocalEnvironmentError:
        version = None
    return spark(version, locked_versions("spark"))
