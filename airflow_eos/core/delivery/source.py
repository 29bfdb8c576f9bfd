"""The sources of a streaming query: asked of its plan before the first row, or a source of ours.

A guarantee needs a source that gives the rows of a planned batch again. Spark tells which sources a
query has, wherever in the query they stand: the leaves of its analysed plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, cast, get_args

from airflow_eos.core.checkpoint.inputs import SERVERS
from airflow_eos.core.checkpoint.topics import NO_ID, TopicsRead, no_such_topic, tell_of_no_ids
from airflow_eos.core.delivery.outputs import OneSink
from airflow_eos.core.delivery.port import SPARK
from airflow_eos.core.delivery.spark_session import classic_session
from airflow_eos.core.delivery.task import distributes
from airflow_eos.core.log import Log
from airflow_eos.core.protocol.decision import Guarantee, SourceRead
from airflow_eos.errors import ConfigurationError, KafkaError, KafkaUnavailableError, Remedy
from airflow_eos.secret_names import is_secret

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.checkpoint.topics import TopicPartition
    from airflow_eos.core.delivery.outputs import Outputs
    from airflow_eos.core.delivery.port import Sink
    from airflow_eos.core.delivery.task import SinkTask

log = Log(__name__)

_GONE_ONCE_READ = {
    "socket": "keeps what it has received in the driver's memory only",
}
_FAIL_ON_DATA_LOSS = "failondataloss"
_NAMES_TOPICS = ("subscribe", "subscribepattern", "assign")


@dataclass(frozen=True, slots=True)
class StreamSource:
    """One source of a query.

    Attributes:
        name: Spark's short name.
        options: its options, whose names are in lower case; of files with their ``format``, and the
            columns that it gives (``schema``), as Spark's JSON.
    """

    name: str
    options: Mapping[str, str]

    @property
    def is_of_files(self) -> bool:
        """Whether it is Spark's file source, whatever the format: its name has the folder."""
        return self.name.startswith("FileSource[")

    @property
    def topics(self) -> frozenset[str] | None:
        """The names of the source's topics; None where it names none, or they may go."""
        if self.name != "kafka" or skips_lost(self):
            return None
        if "assign" in self.options:
            return frozenset(json.loads(self.options["assign"]))
        named = self.options.get("subscribe")
        return None if named is None else frozenset(each.strip() for each in named.split(","))

    @property
    def folder(self) -> str | None:
        """The folder of a source of files, or of a table in one; it may be a glob."""
        return None if self.name == "kafka" else self.options.get("path")


def check_sources(df: DataFrame, guarantee: Guarantee) -> tuple[StreamSource, ...]:
    """Refuse a source that cannot be read again; log a source that may leave rows out.

    Returns:
        The sources of ``df``.

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
    """Whether the source leaves out, without an error, rows that are gone before they are read."""
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


def require_one_cluster(sources: Sequence[StreamSource]) -> None:
    """Refuse a consumer group beside sources of two clusters: it holds the offsets of one.

    A pipeline that goes on from the group would begin elsewhere in the other cluster, whose topics
    may have the same names.

    Raises:
        ConfigurationError: two sources name no broker in common.
    """
    servers = [
        {each.strip() for each in source.options.get("kafka.bootstrap.servers", "").split(",")}
        for source in sources
        if source.name == "kafka"
    ]
    if any(one.isdisjoint(other) for one, other in combinations(servers, 2)):
        raise ConfigurationError(
            "The query reads from several Kafka clusters, as their bootstrap.servers say, and a "
            "consumer group shows the offsets of one.",
            Remedy(change="leave the consumer group away", start=True),
            Remedy(change="read each cluster by a query of its own", start=True),
            Remedy(change="where it is one cluster, name its brokers alike in both", start=True),
        )


def sources_of(df: DataFrame) -> tuple[StreamSource, ...]:
    """Return the streaming sources of ``df``, each as often as it is read.

    Raises:
        ConfigurationError: this Spark does not tell its sources.
    """
    try:
        leaves = df._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001 - not public
        found = [leaves.apply(number) for number in range(leaves.length())]
        # StreamingRelation (files) and StreamingRelationV2 (all others) of Spark 4.0 to 4.3.
        return tuple(
            StreamSource(str(leaf.sourceName()), _options(leaf))
            for leaf in found
            if leaf.isStreaming()
        )
    except Exception as error:
        raise ConfigurationError(
            "This Spark does not tell which sources the query reads (StreamingRelationV2). "
            f"Expected {SPARK}: use one of these, or a newer airflow-provider-eos."
        ) from error


def _options(leaf: Any) -> dict[str, str]:
    """Return a copy of the source's options; of files, whose relation has them elsewhere, too."""
    if leaf.getClass().getSimpleName().endswith("V2"):
        options = leaf.extraOptions()
        return {str(name).lower(): str(options.get(name)) for name in options.keySet().toArray()}
    found = leaf.dataSource()
    options, names = found.options(), found.options().keys().toSeq()
    given = [str(names.apply(number)) for number in range(names.size())]
    options = {name.lower(): str(options.apply(name)) for name in given}
    its = {"format": str(found.className()), "schema": str(leaf.schema().json())}
    return options | its


# --- what is read ---------------------------------------------------------------------------------
# What a source reads, by its options, as decisions promise it and two versions are compared by it.


_OTHERWISE: Mapping[str, Mapping[str, str]] = {
    "kafka": {
        "startingoffsets": "latest",
        "failondataloss": "true",
        "includeheaders": "false",
        "kafka.isolation.level": "read_uncommitted",
    },
    "rate": {"rowspersecond": "1", "rampuptime": "0s"},
    "rate-micro-batch": {"advancemillisperbatch": "1000", "starttimestamp": "0"},
}
"""What Spark takes where an option is not given, of the sources whose options are known."""
_SAY_NOTHING = frozenset(
    {
        *("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "minpartitions"),
        *("maxrecordsperpartition", "fetchoffset.numretries", "fetchoffset.retryintervalms"),
        *("groupidprefix", "kafkaconsumer.polltimeoutms", "maxfilespertrigger"),
        *("maxbytespertrigger", "maxcachedfiles", "discardcachedinputratio", "numpartitions"),
    }
)
"""Options of these sources that say how fast or by how many tasks rows are read, not which."""
_OF_THE_CLIENT = frozenset({SERVERS, "kafka.isolation.level"})
_SHOWN_AT_MOST = 1000


def reads(source: StreamSource) -> SourceRead:
    """Return what the source reads, for a decision: bounded in size, and without secrets."""
    name = source.options.get("format", source.name) if source.is_of_files else source.name
    is_known = source.is_of_files or source.name in _OTHERWISE
    options = {**_OTHERWISE.get(source.name, {}), **source.options}
    if source.name == "kafka":
        options = {
            each: _unordered(each, value)
            for each, value in options.items()
            if each in _OF_THE_CLIENT or not each.startswith(_PREFIX)
        }
    said = {
        each: _shown(value) if is_known else _digest(value)
        for each, value in sorted(options.items())
        if not is_secret(each) and not (is_known and each in _SAY_NOTHING)
    }
    return SourceRead(name, said)


def _unordered(name: str, value: str) -> str:
    """Return the value of an option of Kafka's source, whose order and spaces mean nothing."""
    if name in ("subscribe", SERVERS):
        return ",".join(sorted({each.strip() for each in value.split(",")}))
    try:
        found = json.loads(value) if value.startswith("{") else value
    except ValueError:
        return value  # Spark says what is wrong with it
    return value if found == value else json.dumps(found, sort_keys=True)


def _shown(value: str) -> str:
    """Return the value, or a digest where it is long, or may have a password before a host."""
    return _digest(value) if len(value) > _SHOWN_AT_MOST or "@" in value else value


def _digest(value: str) -> str:
    return f"sha256 {hashlib.sha256(value.encode()).hexdigest()[:16]}"


def tell_of_unheld(sources: Sequence[StreamSource]) -> None:
    """Name sources of which nothing but their offsets is promised: what these mean is theirs."""
    for source in sources:
        if not source.is_of_files and source.name not in _OTHERWISE:
            log.warning(
                "offsets_are_taken_at_their_word",
                source=source.name,
                hint="what rows an offset of this source stands for is not known here: where it "
                "gives other rows for the same offsets after a restart, rows of a promised batch "
                "are noticed, and later ones are not",
            )


# --- source topics --------------------------------------------------------------------------------
# The Kafka topics that a query reads, asked of their cluster by the client of Spark's own source,
# with the same configuration, so whoever may read may ask: the client needs the right to describe
# the topics, which Spark needs as well.


_PREFIX = "kafka."
_POLICY = "cleanup.policy"
_MAY_NOT_ASK = ("AuthorizationException", "UnsupportedVersionException")
"""Java's errors by which a broker tells no settings; any other is a broker that did not answer."""


def topics_read(
    spark: SparkSession, sources: Sequence[StreamSource], resources: ExitStack
) -> tuple[TopicsRead, ...]:
    """Return the topics of each Kafka source, as :class:`TopicsRead`, which asks their cluster.

    Args:
        spark: the session, whose JVM has the client.
        sources: the sources of the query.
        resources: closes the clients.
    """
    return tuple(
        TopicsRead(
            ids=partial(_ids, spark, client, source),
            policies=partial(_policies, spark, client, source),
            begins=partial(_begins, spark, client, source),
            skips_lost=skips_lost(source),
            as_planned=True,
        )
        for source in sources
        if source.name == "kafka"
        if (client := _client(spark, source, resources)) is not None
    )


def _client(spark: SparkSession, source: StreamSource, resources: ExitStack) -> Any:
    """Return an admin client of the source's cluster; None where Python cannot see its classes."""
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    jvm: Any = spark._jvm  # noqa: SLF001 - the JVM that Spark's source runs in
    factory = jvm.org.apache.kafka.clients.admin.AdminClient
    if not isinstance(factory, JavaClass):
        log.warning(
            "topics_not_watched",
            hint="kafka-clients is hidden from Python: a topic that is deleted and made again with "
            "more rows than were read would not be noticed. Give the connector with --packages or "
            "--jars.",
        )
        return None
    properties = jvm.java.util.HashMap()
    for name, value in source.options.items():
        if name.startswith(_PREFIX):
            properties.put(name.removeprefix(_PREFIX), value)
    try:
        client = factory.create(properties)
    except Py4JJavaError as error:
        raise _not_made(error.java_exception, source.options) from error
    resources.callback(client.close)
    return client


def _not_made(error: Any, options: Mapping[str, str]) -> ConfigurationError:
    """Return the error where Java makes no client of the options, which no restart heals."""
    while error.getCause() is not None:
        error = error.getCause()
    given = ", ".join(sorted(name for name in options if name.startswith("kafka.ssl.")))
    return ConfigurationError(
        f"Spark's Kafka source cannot make its client of the options given: {error.toString()}. "
        f"Expected a key and certificates that Java reads, in {given or 'its kafka.* options'}: of "
        "PEM, PKCS#8 ('BEGIN PRIVATE KEY').",
        Remedy(
            commands=("openssl pkcs8 -topk8 -nocrypt -in KEY -out KEY.pk8.pem",),
            change="where it is the key that is refused, give the converted one as the key",
            start=True,
            costs="the file is not encrypted: let its owner alone read it",
        )
        if given
        else Remedy(change="correct the options of the source", start=True),
    )


def _ids(spark: SparkSession, client: Any, source: StreamSource) -> Mapping[str, str]:
    """Return topic → id, of those that have one."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm  # noqa: SLF001
    names: list[str] = []
    try:
        names = _subscribed(jvm, client, source.options)
        told = _described(jvm, client, names)
        found = {name: str(told[name].topicId()) for name in names}
    except Py4JJavaError as error:
        problem = str(error.java_exception)
        if "UnknownTopicOrPartition" in problem:
            raise no_such_topic(names, problem) from error
        raise _unanswered(f"describe the topics {', '.join(names)}", problem) from error
    if NO_ID in found.values():
        tell_of_no_ids()
    return {name: its for name, its in found.items() if its != NO_ID}


def _policies(spark: SparkSession, client: Any, source: StreamSource) -> Mapping[str, str]:
    """Return topic → ``cleanup.policy``, of those whose settings the reader may read, and has."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm  # noqa: SLF001
    config = jvm.org.apache.kafka.common.config.ConfigResource
    topics, kind = jvm.java.util.ArrayList(), config.Type.TOPIC
    names: list[str] = []
    try:
        names = _subscribed(jvm, client, source.options)
        asked = {name: config(kind, name) for name in names}
        for topic in asked.values():
            topics.add(topic)
        told = client.describeConfigs(topics).all().get()
    except Py4JJavaError as error:
        problem = str(error.java_exception)
        if any(each in problem for each in _MAY_NOT_ASK):
            return {}
        doing = f"say whether the topics {', '.join(names)} are compacted"
        raise _unanswered(doing, problem) from error
    found = {name: told.get(topic).get(_POLICY) for name, topic in asked.items()}
    return {name: str(policy.value()) for name, policy in found.items() if policy is not None}


def _begins(spark: SparkSession, client: Any, source: StreamSource) -> Mapping[TopicPartition, int]:
    """Return topic and partition → the first offset in its log."""
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark._jvm  # noqa: SLF001
    of_kafka = jvm.org.apache.kafka
    partition_of, spec = of_kafka.common.TopicPartition, of_kafka.clients.admin.OffsetSpec
    names: list[str] = []
    wanted, asked = jvm.java.util.HashMap(), {}
    try:
        names = _subscribed(jvm, client, source.options)
        assigned, earliest = json.loads(source.options.get("assign", "{}")), spec.earliest()
        for name, described in _described(jvm, client, names).items():
            parts = described.partitions()
            numbers = [parts.get(at).partition() for at in range(parts.size())]
            for number in set(numbers) & set(assigned.get(name, numbers)):
                asked[name, number] = partition_of(name, number)
                wanted.put(asked[name, number], earliest)
        told = client.listOffsets(wanted).all().get()
    except Py4JJavaError as error:
        doing = f"say where the topics {', '.join(names)} begin"
        raise _unanswered(doing, str(error.java_exception)) from error
    return {tp: told.get(partition).offset() for tp, partition in asked.items()}


def _unanswered(doing: str, problem: str) -> KafkaError:
    """Return the error for an answer that is missing; who is away has refused nothing."""
    is_away = any(each in problem for each in ("TimeoutException", "DisconnectException"))
    kind = KafkaUnavailableError if is_away else KafkaError
    return kind(
        f"The cluster of the source does not {doing}: {problem}. Nothing was read or written. "
        "Check that it can be reached, that each partition has a leader, and that the reader may "
        "describe the topics."
    )


def _described(jvm: Any, client: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return topic → Java's ``TopicDescription``."""
    asked = jvm.java.util.ArrayList()
    for name in names:
        asked.add(name)
    told = client.describeTopics(asked).allTopicNames().get()
    # Not a loop over the answer: the exception that ends a Java iterator takes 17 ms to come over.
    return {name: told.get(name) for name in names}


def _subscribed(jvm: Any, client: Any, options: Mapping[str, str]) -> list[str]:
    """Return the topics that exist now, by one of the three ways in which a query names topics."""
    if "subscribe" in options:
        return [name.strip() for name in options["subscribe"].split(",")]
    if "assign" in options:
        return list(json.loads(options["assign"]))
    matches = jvm.java.util.regex.Pattern.compile(options["subscribepattern"]).asMatchPredicate()
    return [name for name in client.listTopics().names().get().toArray() if matches.test(name)]


# --- source port ----------------------------------------------------------------------------------
# A source of ours in place of a DataFrame: its rows, and a way for tasks to read them.


class OpenedSource(Protocol):
    """A source of ours that one query reads."""

    @property
    def frame(self) -> DataFrame:
        """A streaming DataFrame of the source's rows, like any other."""
        ...

    def fused(self, sink: Sink) -> Callable[[SinkTask], DataFrame] | None:
        """Return what runs a sink's task where rows are read; None where only Spark brings them."""
        ...

    def topics(self, resources: ExitStack) -> TopicsRead:
        """Return the source's topics as :class:`TopicsRead`, which asks their cluster."""
        ...

    def reads(self) -> SourceRead:
        """Return what the source reads, as :func:`reads` says it of one of Spark's."""
        ...


class OwnSource(Protocol):
    """A source as a user gives it: a value."""

    def connected(self, spark: SparkSession, store: CheckpointStore) -> OpenedSource:
        """Open the source, for the pipeline of that checkpoint."""
        ...


def is_own(rows: DataFrame | OwnSource) -> TypeGuard[OwnSource]:
    """Whether ``rows`` is a source of ours, by its class: a DataFrame has columns as attributes."""
    return hasattr(type(rows), "connected")


def session_of(rows: DataFrame | OwnSource) -> SparkSession:
    """Return the session of ``rows``, or the active one for a source of ours, which has none.

    Raises:
        ConfigurationError: no session is active, or batches would not run in this process.
    """
    if not is_own(rows):
        return classic_session(cast("DataFrame", rows))
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None or not hasattr(session, "_jsparkSession"):
        raise ConfigurationError(
            "No Spark session is active in this thread, or it is Spark Connect's: expected that of "
            "a classic driver. Make one first (SparkSession.builder.getOrCreate())."
        )
    return session


def beside(own: OpenedSource | None, sink: OneSink | Outputs) -> OneSink | Outputs:
    """Return ``sink``, fused with the source where the source can and the sink is a single one."""
    if own is None or not isinstance(sink, OneSink) or distributes(sink.sink):
        return sink
    return replace(sink, fused=own.fused(sink.sink))


# --- query input ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class QueryInput:
    """The input of a query: a DataFrame, of Spark's sources or of one of ours."""

    frame: DataFrame
    own: OpenedSource | None
    sources: Sequence[StreamSource]

    @classmethod
    def of(
        cls, df: DataFrame | OwnSource, store: CheckpointStore, guarantee: Guarantee
    ) -> QueryInput:
        """Refuse an unknown guarantee, and sources that cannot give it."""
        if guarantee not in get_args(Guarantee):
            raise ConfigurationError(
                f"guarantee {guarantee!r}: expected {' or '.join(map(repr, get_args(Guarantee)))}."
            )
        own = df.connected(session_of(df), store) if is_own(df) else None
        frame = own.frame if own is not None else cast("DataFrame", df)
        found = cls(frame, own, check_sources(frame, guarantee))
        if own is None and guarantee == "exactly_once":
            tell_of_unheld(found.sources)
        return found

    @property
    def reads(self) -> tuple[SourceRead, ...]:
        """What each source reads, as its decisions promise it."""
        return (self.own.reads(),) if self.own is not None else tuple(map(reads, self.sources))

    def topics(self, spark: SparkSession, resources: ExitStack) -> tuple[TopicsRead, ...]:
        """Return the topics of each source, as :class:`TopicsRead`, which asks their cluster."""
        if self.own is not None:
            return (self.own.topics(resources),)
        return topics_read(spark, self.sources, resources)
