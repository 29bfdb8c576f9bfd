"""Queries about a cluster itself: its leaders, coordinators, capabilities and settings.

Answers are cached where acting on an outdated one makes the broker answer with an error that says
so (NOT_LEADER, NOT_COORDINATOR): the caller then refreshes and asks again.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from airflow_eos.errors import (
    KafkaError,
    KafkaUnavailableError,
    Remedy,
    TopicError,
    TransactionError,
)
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.client.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    ApiVersionsRequest,
    CoordinatorType,
    DescribeConfigsRequest,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListTransactionsRequest,
    MetadataRequest,
    NetworkSelector,
    OffsetFetchRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

# --- capabilities ---------------------------------------------------------------------------------
# What the brokers of a cluster can do, and what follows where they cannot; no code here does I/O.
#
# A dozen servers speak Kafka's protocol, and each leaves out something else. So nothing is read
# from a product's name or version: each broker says which messages it speaks (ApiVersions, KIP-35),
# the cluster which features are in force (KIP-584), and a broker its settings. Each thing that we
# need has three answers: all brokers have it, some have not, or no broker has told.


MAX_TIMEOUT = "transaction.max.timeout.ms"
STATE_COPIES = "transaction.state.log.replication.factor"
STATE_MIN_INSYNC = "transaction.state.log.min.isr"
TWO_PHASE_SETTING = "transaction.two.phase.commit.enable"
SETTINGS = (MAX_TIMEOUT, STATE_COPIES, STATE_MIN_INSYNC, TWO_PHASE_SETTING)
"""The settings that are read from a broker's configuration, in one request."""
_PADDING_MS = 5 * 60 * 1000  # org.apache.kafka.tools.TransactionsCommand


class Need(NamedTuple):
    """A message that this package sends, and that brokers therefore need to speak.

    Attributes:
        purpose: what the message is sent for; follows "to" in a sentence.
        least: the message's first version that serves the purpose.
        without: what happens where brokers lack the message; empty: nothing can be delivered.
        of_groups: whether only pipelines that set a consumer group's offsets send the message.
    """

    message: Any
    purpose: str
    least: int = 0
    without: str = ""
    of_groups: bool = False

    @property
    def name(self) -> str:
        """The message's name as in Kafka's documentation, with the least version unless it is 0."""
        name = str(self.message.name).removesuffix("Request")
        return f"{name} {self.least}" if self.least else name


NEEDS = (
    Need(ProduceRequest, "write rows of a transaction", 3),
    Need(FetchRequest, "read in the log what became of a transaction", 4),
    Need(ListOffsetsRequest, "see how far readers may read", 2),
    Need(MetadataRequest, "find the leaders of partitions, without making topics", 4),
    Need(FindCoordinatorRequest, "find who coordinates a transactional id", 1),
    Need(InitProducerIdRequest, "take a transactional id"),
    Need(AddPartitionsToTxnRequest, "say where a transaction writes"),
    Need(EndTxnRequest, "commit in one process what another has prepared"),
    Need(ListTransactionsRequest, "find what a driver that died has left open"),
    Need(DescribeTransactionsRequest, "tell whose an open transaction is, and since when"),
    Need(DescribeConfigsRequest, "see that the topic of prefixes forgets nothing"),
    Need(
        DescribeProducersRequest,
        "see which transaction holds readers up",
        without="the log is read for it, from the last stable offset on",
    ),
    Need(
        WriteTxnMarkersRequest,
        "write a marker that a broker has left out",
        without="where one is left out (KAFKA-20734), readers stand still there until who runs "
        "the cluster ends it, and no batch is decided meanwhile that would write there",
    ),
    Need(
        MetadataRequest,
        "know a topic by its id",
        10,
        without="topics are not watched: one that is deleted and made again with more rows than "
        "were read is not noticed",
    ),
    Need(OffsetFetchRequest, "read the offsets of a consumer group", 1, of_groups=True),
    Need(AddOffsetsToTxnRequest, "set a group's offsets in a transaction", of_groups=True),
    Need(TxnOffsetCommitRequest, "set a group's offsets in a transaction", of_groups=True),
)

TWO_PHASE = Need(InitProducerIdRequest, "open a transaction that no timer ends", 6)
"""What no pipeline needs, but those of ``KafkaSink(two_phase=True)`` (KIP-939)."""


@dataclass(frozen=True, slots=True)
class Capability:
    """Which brokers speak one needed message.

    Attributes:
        version: the highest that we and all brokers that answered speak; None where one lacks it.
    """

    need: Need
    version: int | None
    having: tuple[int, ...]
    lacking: tuple[int, ...]

    def __str__(self) -> str:
        """Return, as in "EndTxn, to commit …, is missing on broker 2 (1 and 3 have it)"."""
        others = "no broker has it"
        if self.having:
            others = f"{_listed(self.having)} ha{'s' if len(self.having) == 1 else 've'} it"
        return (
            f"{self.need.name}, to {self.need.purpose}, is missing on {_named(self.lacking)} "
            f"({others})"
        )


@dataclass(frozen=True, slots=True)
class BrokerCapabilities:
    """The messages, features and settings that a cluster's brokers reported, at one moment.

    Attributes:
        versions: broker → key of a message → the least and the highest version that it speaks.
        silent: brokers that are named as alive and did not answer: nothing is known of these.
        transaction_version: level of the feature ``transaction.version`` (KIP-890) on all brokers.
        settings: those of :data:`SETTINGS` that a broker told.
        untold: why a broker refused to tell settings, for people; empty where it just omits some.
    """

    versions: Mapping[int, Mapping[int, tuple[int, int]]]
    silent: tuple[int, ...]
    transaction_version: int
    settings: Mapping[str, str]
    untold: str = ""

    def of(self, need: Need) -> Capability:
        """Return which brokers speak one needed message."""
        key, ours = int(need.message.API_KEY), int(need.message.max_version)
        highest: dict[int, int] = {}
        for broker, told in self.versions.items():
            least, most = told.get(key, (0, -1))
            if max(least, need.least) <= min(most, ours):
                highest[broker] = min(most, ours)
        lacking = tuple(sorted(self.versions.keys() - highest.keys()))
        version = None if lacking or not highest else min(highest.values())
        return Capability(need, version, tuple(sorted(highest)), lacking)

    @property
    def longest_life_ms(self) -> int | None:
        """Greatest possible age of a transaction with a coordinator, with Kafka's own padding."""
        told = self.settings.get(MAX_TIMEOUT)
        return None if told is None else int(told) + _PADDING_MS

    def speak(self, message: Any) -> bool:
        """Whether all brokers that answered speak a message (one that they may lack)."""
        return all(self.of(need).version is not None for need in _of(message) if not need.of_groups)

    def require(self, *messages: Any, groups: bool = False) -> None:
        """Refuse brokers that lack a needed message.

        Args:
            messages: the needed messages; by default all without which nothing is delivered.
            groups: whether the default is those for a consumer group's offsets instead.

        Raises:
            KafkaError: naming each missing message, its purpose, and the brokers that lack it.
        """
        needs = [need for message in messages for need in _of(message)] or [
            need for need in NEEDS if need.of_groups == groups and not need.without
        ]
        missing = [found for need in needs if (found := self.of(need)).version is None]
        if missing:
            raise KafkaError(
                f"These brokers cannot do what is asked of them: {'; '.join(map(str, missing))}.",
                Remedy(
                    change="use a cluster whose brokers speak them (docs/brokers.md has a table)",
                    start=True,
                ),
            )

    def remarks(self) -> tuple[str, ...]:
        """Describe what is unproven or takes longer, since brokers lack optional messages."""
        optional = [self.of(need) for need in NEEDS if need.without]
        found = [f"{each}: {each.need.without}" for each in optional if each.version is None]
        if MAX_TIMEOUT not in self.settings:
            why = f" ({self.untold})" if self.untold else ""
            found.append(
                f"{MAX_TIMEOUT} is not told{why}: the first transaction shows whether its timeout "
                "is taken"
            )
        if self.silent:
            found.append(f"of {_named(self.silent)} nothing is known: no answer")
        return tuple(found)


def _of(message: Any) -> list[Need]:
    return [need for need in NEEDS if need.message is message]


def _named(brokers: tuple[int, ...]) -> str:
    return f"broker{'s' * (len(brokers) > 1)} {_listed(brokers)}"


def _listed(brokers: tuple[int, ...]) -> str:
    *others, last = map(str, brokers)
    return f"{', '.join(others)} and {last}" if others else last


# --- cluster --------------------------------------------------------------------------------------


_IDS_PER_LOOKUP = 1000
_TOPIC_GRACE_S = 1.2
"""How long an unknown topic is asked for: one just created is unknown to brokers for a moment."""
_TOPIC_S = 30.0
_BROKERS_S = 60.0
_SETTINGS_S = 10.0
_ALL_S, _EACH_S = 5.0, 2.0
"""How long all brokers together (after a failure, each alone) may take to tell their versions."""
TRANSACTIONS = "__transaction_state"
"""Kafka's own log of transactions: a partition's leader coordinates the transactions in it."""
_RESOURCE_TOPIC, _RESOURCE_BROKER = 2, 4  # org.apache.kafka.common.config.ConfigResource.Type


class KnownBrokers:
    """The brokers named in the cluster's metadata.

    Args:
        refusal: returns with which error a broker has refused the last login; None: none has.
    """

    def __init__(
        self,
        net: NetworkSelector,
        metadata: Any,
        refusal: Callable[[], BaseException | None] = lambda: None,
    ) -> None:
        self._net = net
        self._cluster = metadata
        self._refusal = refusal

    def refresh(self) -> bool:
        """Refresh the metadata, for brokers that have joined or moved; False if that failed.

        Raises:
            KafkaError: the brokers do not accept these credentials, as after a change of them.
        """
        try:
            self._net.run(self._cluster.refresh_metadata)
        except Exception as error:  # of the network, of kafka-python: it is no answer
            if (refused := self._refusal()) is not None:
                raise refused from error
            return False
        return True

    def has(self, node_id: int) -> bool:
        """Whether the metadata has that broker's address."""
        return self._cluster.broker_metadata(node_id) is not None

    def ids(self) -> list[int]:
        """Return the ids of all known brokers, in ascending order."""
        return sorted(broker.node_id for broker in self._cluster.brokers())


class Requests(Protocol):
    """What is asked of a :class:`~airflow_eos.kafka.client.connection.ConnectionPool` here."""

    def request(self, message: Any, *, node_id: int | None = None, timeout_s: float = 30.0) -> Any:
        """Send one request and return the response."""

    def request_many(
        self, requests: Sequence[tuple[Any, int | None]], *, timeout_s: float = 30.0
    ) -> list[Any]:
        """Send all requests together and return their responses in their order."""

    def highest_version(self, message_class: Any) -> int:
        """Return the highest version of a message that both sides speak."""


class ClusterView:
    """Queries about one cluster, with cached answers; thread-safe as its connections are."""

    def __init__(self, wire: Requests, known: KnownBrokers) -> None:
        self._wire = wire
        self._known = known
        self._leaders: dict[str, dict[int, int]] = {}
        self._ids: dict[str, str] = {}
        self._coordinators: dict[str, int] = {}
        self._transaction_version: int | None = None
        self._capabilities: BrokerCapabilities | None = None

    def brokers(self) -> list[int]:
        """Return the ids of the live brokers, from the cluster's metadata as of now.

        Raises:
            KafkaUnavailableError: no broker told; older metadata lacks brokers that joined since.
            KafkaError: the brokers do not accept these credentials any more.
        """
        deadline = Deadline(_BROKERS_S)
        while not self._known.refresh():
            if not deadline.pause():
                raise KafkaUnavailableError(
                    f"Which brokers run, none of those that are known tells within {deadline}. "
                    "Check that they run, then ask again."
                )
        return self._known.ids()

    def describe_topic(self, topic: str, *, rights: bool = False) -> Any:
        """Return a topic's metadata or error code, never creating it; ``rights``: with permissions.

        Raises:
            KafkaUnavailableError: the error is one that passes by itself, and it has not passed.
        """
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=rights,
        )
        deadline = Deadline(_TOPIC_S)
        code = faults.LEADER_NOT_AVAILABLE
        while True:
            for found in self._wire.request(request).topics:
                code = int(found.error_code)
                # Absent or refused is a final answer; another retriable error is none.
                final = code == faults.UNKNOWN_TOPIC_OR_PARTITION or not faults.is_retriable(code)
                if found.name == topic and final:
                    return found
            if not deadline.pause():
                raise KafkaUnavailableError(
                    f"What topic {topic!r} is, nobody says: {faults.error_name(code)} for "
                    f"{deadline}. Check that the brokers and their controller run, then ask again."
                )

    def leaders(self, topic: str, *, refresh: bool = False) -> dict[int, int]:
        """Return, for each partition of a topic, its leading broker's id (-1: none now).

        Raises:
            TopicError: the topic does not exist (it is never created), or may not be described.
            KafkaUnavailableError: no broker answered.
        """
        found = self.find_leaders(topic, refresh=refresh)
        if found is None:
            raise _topic_missing(topic)
        return found

    def topic_id(self, topic: str) -> str:
        """Return the id that the topic had when its leaders were asked for; empty: none."""
        return self._ids.get(topic, "")

    def find_leaders(self, topic: str, *, refresh: bool = False) -> dict[int, int] | None:
        """Return each partition's leader as :meth:`leaders`; ``None`` if the topic is absent."""
        found = None if refresh else self._leaders.get(topic)
        if found is None:
            self._leaders.pop(topic, None)
            if (found := self._ask_leaders(topic)) is None:
                return None
            self._leaders[topic] = found
            self._learn(found.values())
        return dict(found)

    def _ask_leaders(self, topic: str) -> dict[int, int] | None:
        deadline = Deadline(_TOPIC_GRACE_S)
        while True:
            found = self.describe_topic(topic)
            if found.error_code == faults.NONE:
                self._ids[topic] = id_of(found)
                return {p.partition_index: p.leader_id for p in found.partitions}
            if found.error_code != faults.UNKNOWN_TOPIC_OR_PARTITION:
                raise topic_refused(found.error_code, topic)
            if not deadline.pause():
                return None

    def coordinators(self, ids: Collection[str], *, timeout_s: float = 30.0) -> dict[str, int]:
        """Return, for each transactional id, the broker that coordinates it (KIP-98); cached.

        Waits while a new cluster creates ``__transaction_state`` for its first transaction.

        Raises:
            TransactionError: not allowed to describe the id, or an unexpected error code.
            KafkaUnavailableError: some coordinator was not found within ``timeout_s``.
        """
        deadline = Deadline(timeout_s)
        found = {i: node for i in ids if (node := self._coordinators.get(i)) is not None}
        missing = [i for i in dict.fromkeys(ids) if i not in found]
        while missing:
            refused = self._look_up(missing, found, deadline.remaining)
            missing = list(refused)
            if missing and not deadline.pause():
                name = missing[0]
                raise KafkaUnavailableError(
                    f"No coordinator for {len(missing)} transactional ids, as {name!r}: "
                    f"{faults.error_name(refused[name])} for {deadline}. Check that "
                    "__transaction_state has as many live replicas as "
                    "transaction.state.log.min.isr asks for."
                )
        return found

    def forget_coordinators(self, ids: Iterable[str]) -> None:
        """Drop cached coordinators of ids whose broker answered NOT_COORDINATOR or went away."""
        for transactional_id in ids:
            self._coordinators.pop(transactional_id, None)

    def _look_up(self, ids: list[str], found: dict[str, int], timeout_s: float) -> dict[str, int]:
        """Add coordinators to ``found``; return the ids to ask for again, with their error code."""
        # An id that no response names counts as one without a coordinator yet.
        refused = dict.fromkeys(ids, faults.COORDINATOR_NOT_AVAILABLE)
        for found_id, code, node_id in self._find_coordinators(ids, timeout_s):
            if code == faults.NONE:
                self._coordinators[found_id] = found[found_id] = node_id
                refused.pop(found_id, None)
            elif faults.next_step(code) in faults.ASK_AGAIN:
                refused[found_id] = code
            else:
                raise faults.refusal(
                    code,
                    f"while looking for the coordinator of transactional id {found_id!r}",
                    acl=f"Describe on TransactionalId {found_id!r}",
                    otherwise=TransactionError,
                )
        self._learn(found.values())
        return refused

    def _find_coordinators(self, ids: list[str], timeout_s: float) -> list[tuple[str, int, int]]:
        kind = CoordinatorType.TRANSACTION.value
        if self._wire.highest_version(FindCoordinatorRequest) >= 4:  # KIP-699: many keys a request
            chunks = [ids[i : i + _IDS_PER_LOOKUP] for i in range(0, len(ids), _IDS_PER_LOOKUP)]
            requests: list[tuple[Any, int | None]] = [
                (FindCoordinatorRequest(key_type=kind, coordinator_keys=chunk, min_version=4), None)
                for chunk in chunks
            ]
            answers = self._wire.request_many(requests, timeout_s=timeout_s)
            return [
                (c.key, c.error_code, c.node_id) for answer in answers for c in answer.coordinators
            ]
        requests = [
            (FindCoordinatorRequest(key=i, key_type=kind, max_version=3), None) for i in ids
        ]
        answers = self._wire.request_many(requests, timeout_s=timeout_s)
        return [(i, a.error_code, a.node_id) for i, a in zip(ids, answers, strict=True)]

    def require_coordinators(self, *, must_be_told: bool = False, timeout_s: float = 30.0) -> None:
        """Refuse a cluster where some transactions have no coordinator now: no listing has them.

        Each broker lists its own transactions, and none says that others' are missing. Where
        ``__transaction_state`` is absent, as on servers other than Kafka, this is not known.

        Args:
            must_be_told: refuse also where these credentials may not describe the topic.
            timeout_s: how long a coordinator may be away, as while it moves.

        Raises:
            TopicError: these credentials may not describe the topic.
            KafkaUnavailableError: partitions of ``__transaction_state`` have no leader.
        """
        deadline = Deadline(timeout_s)
        while True:
            found = self.describe_topic(TRANSACTIONS)
            away = sorted(each.partition_index for each in found.partitions if each.leader_id < 0)
            if not away:
                break
            if not deadline.pause():
                raise KafkaUnavailableError(
                    f"Which transactions are open is not known: partitions {away} of "
                    f"{TRANSACTIONS} have no leader for {deadline}, and what is noted there nobody "
                    "lists.",
                    Remedy(change="bring the brokers back that have their copies"),
                )
        told = {faults.NONE, faults.UNKNOWN_TOPIC_OR_PARTITION}
        if must_be_told and found.error_code not in told:
            raise topic_refused(found.error_code, TRANSACTIONS)

    def _learn(self, node_ids: Iterable[int]) -> None:
        if not all(map(self._known.has, {node_id for node_id in node_ids if node_id >= 0})):
            self._known.refresh()

    @property
    def transaction_version(self) -> int:
        """Finalized level of ``transaction.version`` (KIP-890): 2 fences by epoch; 0 if absent."""
        if self._transaction_version is None:
            self._transaction_version = _transaction_version(self._wire.request(_who_are_you()))
        return self._transaction_version

    def capabilities(self) -> BrokerCapabilities:
        """Return the capabilities of all live brokers, asked for once and cached.

        Raises:
            KafkaUnavailableError: no broker answered.
        """
        if self._capabilities is None:
            nodes = self.brokers()
            told, why = self._ask_each(nodes)
            if not told:
                raise KafkaUnavailableError(
                    f"None of the brokers {nodes} says what it can do. {why}"
                )
            settings, untold = self._settings()
            self._capabilities = BrokerCapabilities(
                versions={
                    node: {
                        each.api_key: (each.min_version, each.max_version) for each in a.api_keys
                    }
                    for node, a in told.items()
                },
                silent=tuple(node for node in nodes if node not in told),
                transaction_version=min(map(_transaction_version, told.values())),
                settings=settings,
                untold=untold,
            )
            self._transaction_version = self._capabilities.transaction_version
        return self._capabilities

    def _ask_each(self, nodes: list[int]) -> tuple[dict[int, Any], str]:
        """Return the versions told by each broker that answers in time, and why one does not."""
        why = "Check that they run."
        requests = [(_who_are_you(), node) for node in nodes]
        try:
            answers = dict(
                zip(nodes, self._wire.request_many(requests, timeout_s=_ALL_S), strict=True)
            )
        except KafkaUnavailableError:
            answers = {}
            for node in nodes:
                try:
                    answers[node] = self._wire.request(
                        _who_are_you(), node_id=node, timeout_s=_EACH_S
                    )
                except KafkaUnavailableError as error:
                    why = str(error)
        return {node: a for node, a in answers.items() if a.error_code == faults.NONE}, why

    def _settings(self) -> tuple[dict[str, str], str]:
        """Return the settings that a broker tells, and, if it refuses, why."""
        try:
            return self.broker_config(SETTINGS), ""
        except KafkaUnavailableError:
            raise
        except KafkaError as error:  # denied, or the broker lacks DescribeConfigs
            return {}, str(error)

    def broker_config(self, names: Collection[str]) -> dict[str, str]:
        """Return the named settings of one live broker, without those that it does not know."""
        nodes = self.brokers()
        for node_id in nodes:
            try:
                return self._configs(
                    _RESOURCE_BROKER, str(node_id), names, node_id, "DescribeConfigs on Cluster"
                )
            except KafkaUnavailableError:
                if node_id == nodes[-1]:
                    raise
        raise KafkaUnavailableError("The cluster names no broker that is alive. Ask again.")

    def topic_config(self, topic: str, names: Collection[str]) -> dict[str, str]:
        """Return the named settings in force for a topic, defaults included.

        Raises:
            TopicError: the topic does not exist, or its settings may not be read.
        """
        return self._configs(
            _RESOURCE_TOPIC, topic, names, None, f"DescribeConfigs on Topic {topic!r}"
        )

    def _configs(
        self, kind: int, name: str, names: Collection[str], node_id: int | None, acl: str
    ) -> dict[str, str]:
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=list(names)
        )
        answer = self._wire.request(
            DescribeConfigsRequest(resources=[resource], include_synonyms=False),
            node_id=node_id,
            timeout_s=30.0 if node_id is None else _SETTINGS_S,
        )
        result = next((each for each in answer.results if each.resource_name == name), None)
        if result is None:
            raise KafkaError(f"A broker was asked for settings of {name!r}, and told of others.")
        if result.error_code == faults.NONE:
            return {c.name: c.value for c in result.configs if c.value is not None}
        if kind == _RESOURCE_TOPIC and result.error_code == faults.UNKNOWN_TOPIC_OR_PARTITION:
            raise _topic_missing(name)
        passes = faults.is_retriable(result.error_code)  # no answer, and so no refusal either
        raise faults.refusal(
            result.error_code,
            f"while reading settings of {name!r}",
            acl=acl,
            otherwise=KafkaUnavailableError if passes else KafkaError,
        )


def _who_are_you() -> Any:
    return ApiVersionsRequest(client_software_name="airflow-eos", client_software_version="0")


def _transaction_version(answer: Any) -> int:
    features = getattr(answer, "finalized_features", None) or ()
    levels = {feature.name: feature.max_version_level for feature in features}
    return int(levels.get("transaction.version", 0))


def _topic_missing(topic: str) -> TopicError:
    return TopicError(
        f"Topic {topic!r} does not exist on this cluster. Create it, or correct its name."
    )


def topic_refused(code: int, topic: str) -> KafkaError:
    """Return the error to raise for a topic that could not be described."""
    acl = f"Describe on Topic {topic!r}"
    return faults.refusal(code, f"while describing topic {topic!r}", acl=acl, otherwise=TopicError)


def id_of(described: Any) -> str:
    """Return a described topic's id, as Java's ``Uuid.toString`` writes it; empty: it has none."""
    told = getattr(described, "topic_id", None)
    if told is None or told.int == 0:  # Uuid.ZERO_UUID
        return ""
    return base64.urlsafe_b64encode(told.bytes).decode().rstrip("=")
