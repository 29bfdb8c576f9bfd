"""What the brokers of a cluster can do, and what follows where they cannot; pure, as they told it.

Kafka's protocol has a dozen servers, and each leaves out something else. So nothing is read from a
name or a version of a product: each broker says which messages it speaks (ApiVersions, KIP-35), the
cluster which features are in force (KIP-584), and a broker its settings. To each thing that we need
there are three answers: all brokers have it, some have not, or nobody has told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_eos.errors import KafkaError, Remedy
from airflow_eos.kafka.client.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
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
    OffsetFetchRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TIMEOUT = "transaction.max.timeout.ms"
STATE_COPIES = "transaction.state.log.replication.factor"
STATE_MIN_INSYNC = "transaction.state.log.min.isr"
SETTINGS = (MAX_TIMEOUT, STATE_COPIES, STATE_MIN_INSYNC)
"""What a broker is asked of its own configuration, in one look."""
_PADDING_MS = 5 * 60 * 1000  # org.apache.kafka.tools.TransactionsCommand


class Need(NamedTuple):
    """One message that we send.

    Attributes:
        message: its class.
        purpose: what for, after "to".
        least: the first version that can do it.
        without: what holds where it is missing; empty: nothing is delivered without it.
        of_groups: only where the offsets of a consumer group are set.
    """

    message: Any
    purpose: str
    least: int = 0
    without: str = ""
    of_groups: bool = False

    @property
    def name(self) -> str:
        """As Kafka's documentation has it."""
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


@dataclass(frozen=True, slots=True)
class Capability:
    """What is known of one need.

    Attributes:
        need: which.
        version: the highest that all who answered speak, and we; None where one speaks none.
        having: the brokers that speak it.
        lacking: those that do not.
    """

    need: Need
    version: int | None
    having: tuple[int, ...]
    lacking: tuple[int, ...]

    def __str__(self) -> str:
        """As in "EndTxn, to commit …, is missing on broker 2 (1 and 3 have it)"."""
        others = "no broker has it"
        if self.having:
            others = f"{_listed(self.having)} ha{'s' if len(self.having) == 1 else 've'} it"
        return (
            f"{self.need.name}, to {self.need.purpose}, is missing on {_named(self.lacking)} "
            f"({others})"
        )


@dataclass(frozen=True, slots=True)
class BrokerCapabilities:
    """What the brokers of one cluster told of themselves, at one moment.

    Attributes:
        versions: broker → key of a message → the least and the highest version that it speaks.
        silent: brokers that are named as alive and did not answer: of these nothing is known.
        transaction_version: the feature ``transaction.version`` (KIP-890) that is in force for all.
        settings: those of :data:`SETTINGS` that a broker told.
        untold: why others are not among them, for people; empty where it just left them out.
    """

    versions: Mapping[int, Mapping[int, tuple[int, int]]]
    silent: tuple[int, ...]
    transaction_version: int
    settings: Mapping[str, str]
    untold: str = ""

    def of(self, need: Need) -> Capability:
        """The answer to one need."""
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
        """How old a transaction can become that has a coordinator, with Kafka's own padding."""
        told = self.settings.get(MAX_TIMEOUT)
        return None if told is None else int(told) + _PADDING_MS

    def speak(self, message: Any) -> bool:
        """Whether all who answered speak a message of those that may be missing."""
        return all(self.of(need).version is not None for need in _of(message) if not need.of_groups)

    def require(self, *messages: Any, groups: bool = False) -> None:
        """Refuse brokers that lack what is needed.

        Args:
            messages: these; by default all without which nothing is delivered.
            groups: those of consumer groups instead.

        Raises:
            KafkaError: with each message that is missing, what for, and on which brokers.
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
        """What is unproven, or takes longer, for want of what may be missing."""
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
