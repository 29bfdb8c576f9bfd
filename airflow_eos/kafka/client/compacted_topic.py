"""The settings of a small compacted topic of one partition: made if absent, refused if it forgets.

Over librdkafka, which finds leaders by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_eos.errors import KafkaError, KafkaUnavailableError, TopicError
from airflow_eos.kafka.client import faults
from airflow_eos.kafka.client.deadline import Deadline

if TYPE_CHECKING:
    from airflow_eos.kafka.client.settings import KafkaSettings

_TIMEOUT_S = 30.0
_ANSWER_S = 5.0
_CONFIG = {
    "cleanup.policy": "compact",
    # The active segment is never compacted, and every start reads it: small, and closed soon.
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}
T = TypeVar("T")


def require_topic(settings: KafkaSettings, topic: str) -> None:
    """Make the topic if it is absent; refuse one that could forget.

    Raises:
        TopicError: it has more than one partition or is not compacted alone; or it is absent and
            may not be made. The message has the command.
        KafkaUnavailableError: no broker answers.
    """
    from confluent_kafka import KafkaError as Code
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._config import ConfigResource
    from confluent_kafka.admin._resource import ResourceType
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient(settings.librdkafka())
    if partitions(admin, topic) == 0:
        wanted = NewTopic(topic, num_partitions=1, replication_factor=-1, config=_CONFIG)
        try:
            admin.create_topics([wanted], request_timeout=_TIMEOUT_S)[topic].result(_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != Code.TOPIC_ALREADY_EXISTS:
                raise _not_made(topic, error) from error
        _patiently(lambda: _require_there(admin, topic), topic)
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def ask() -> Any:
        answer = admin.describe_configs([resource], request_timeout=_TIMEOUT_S)[resource]
        return answer.result(_TIMEOUT_S)["cleanup.policy"].value

    found = _patiently(ask, topic, "DescribeConfigs")
    count = partitions(admin, topic)
    if found != "compact" or count != 1:
        raise TopicError(
            f"Topic {topic!r} has cleanup.policy={found} and {count} partitions. It remembers "
            "who owns a prefix: expected cleanup.policy=compact, so that it forgets nothing, and "
            "one partition, so that claims have one order. Mend it, or delete it while no "
            "pipeline runs: the next start makes it anew."
        )


def partitions(client: Any, topic: str) -> int:
    """How many the topic has; 0 where there is none."""
    from confluent_kafka import KafkaError as Code
    from confluent_kafka import KafkaException

    def ask() -> int:
        found = client.list_topics(topic, timeout=_ANSWER_S).topics[topic]
        if found.error is None:
            return len(found.partitions)
        if found.error.code() == Code.UNKNOWN_TOPIC_OR_PART:
            return 0
        raise KafkaException(found.error)

    return _patiently(ask, topic)


def acknowledged_end(consumer: Any, topic: str) -> int:
    """Behind the last record that was acknowledged before this was asked.

    What a fetch calls the end can be before it: a new leader does not know at first how far its
    log was acknowledged. This question it refuses until it does (KIP-207).
    """
    from confluent_kafka import TopicPartition

    place = TopicPartition(topic, 0)

    def ask() -> int:
        _, end = consumer.get_watermark_offsets(place, timeout=_ANSWER_S)
        return int(end)

    return _patiently(ask, topic)


def _require_there(client: Any, topic: str) -> None:
    from confluent_kafka import KafkaError as Code
    from confluent_kafka import KafkaException

    if partitions(client, topic) == 0:
        raise KafkaException(Code(Code.LEADER_NOT_AVAILABLE))


def _patiently(ask: Callable[[], T], topic: str, operation: str = "Describe") -> T:
    """Ask until there is a leader: a new topic takes a moment to get one."""
    from confluent_kafka import KafkaException

    deadline = Deadline(_TIMEOUT_S)
    while True:
        try:
            return ask()
        except KafkaException as error:
            if not _passes(error) or not deadline.pause():
                raise named(error, topic, operation) from error


def _passes(error: Any) -> bool:
    """Whether it is one that time heals; a missing ACL or a wrong password is not."""
    from confluent_kafka import KafkaError as Code

    final = {
        faults.TOPIC_AUTHORIZATION_FAILED,
        faults.CLUSTER_AUTHORIZATION_FAILED,
        Code._AUTHENTICATION,  # noqa: SLF001 - librdkafka's own codes begin with one
    }
    return error.args[0].code() not in final


def named(error: Any, topic: str, operation: str) -> KafkaError:
    """The error to raise for librdkafka's; ``operation`` is the one that its ACL has to allow."""
    code = error.args[0].code()
    doing = f"for topic {topic!r}, which remembers who owns a transactional id prefix"
    if code in {faults.TOPIC_AUTHORIZATION_FAILED, faults.CLUSTER_AUTHORIZATION_FAILED}:
        return faults.refusal(code, doing, acl=f"{operation} on Topic {topic!r}")
    return KafkaUnavailableError(f"Kafka answered {error} {doing}. Check the brokers.")


def _not_made(topic: str, error: Any) -> TopicError:
    config = " ".join(f"--config {name}={value}" for name, value in _CONFIG.items())
    return TopicError(
        f"Topic {topic!r}, which remembers who owns a transactional id prefix, is absent and could "
        f"not be made: {error}. Grant Create on Topic {topic!r}, or make it once: kafka-topics.sh "
        f"--create --topic {topic} --partitions 1 {config}."
    )
