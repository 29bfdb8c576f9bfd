"""A small compacted topic of one partition: create it or check its settings, read it, append to it.

Over librdkafka, which finds leaders by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka import KafkaError as Code
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from airflow_eos.errors import KafkaError, KafkaUnavailableError, Remedy, TopicError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.errors import Deadline
from airflow_eos.kafka.client.settings import KafkaSettings

_TIMEOUT_S = 30.0
_ANSWER_S = 5.0
_CONFIG = {
    "cleanup.policy": "compact",
    # The active segment is never compacted, and each start reads it: so it is small, closed soon.
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}
T = TypeVar("T")


def require_topic(settings: KafkaSettings, topic: str) -> None:
    """Create the topic if it is absent; refuse one whose settings let it lose records.

    An empty one was created by another client's metadata request (``auto.create.topics.enable``,
    Kafka's default), with the broker's defaults: its settings are altered where that is enough.

    Raises:
        TopicError: the topic has more than one partition or another cleanup.policy than compact;
            or it is absent and may not be created. The remedy has the command.
        KafkaUnavailableError: no broker answers.
    """
    admin = AdminClient(settings.librdkafka())
    if partitions(admin, topic) == 0:
        wanted = NewTopic(topic, num_partitions=1, replication_factor=-1, config=_CONFIG)
        try:
            _answered(admin.create_topics([wanted], request_timeout=_TIMEOUT_S)[topic])
        except KafkaException as error:
            if error.args[0].code() != Code.TOPIC_ALREADY_EXISTS:
                raise _not_made(topic, error, settings) from error
        _patiently(lambda: _require_there(admin, topic), topic)
    found, count = _policy(admin, topic), partitions(admin, topic)
    if found != "compact" and count == 1 and _never_written(settings, topic):
        _alter(admin, topic)
        found = _policy(admin, topic)
    if found != "compact" or count != 1:
        raise TopicError(
            f"Topic {topic!r} has cleanup.policy={found} and {count} partitions. It remembers "
            "who owns a prefix: expected cleanup.policy=compact, so that it forgets nothing, and "
            "one partition, so that claims have one order.",
            _mended(settings, topic, count),
        )


def is_absent(settings: KafkaSettings, topic: str) -> bool:
    """Whether the topic does not exist; asking does not create it.

    Raises:
        KafkaUnavailableError: no broker answers.
    """
    return partitions(AdminClient(settings.librdkafka()), topic) == 0


def _policy(admin: Any, topic: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def ask() -> Any:
        answer = admin.describe_configs([resource], request_timeout=_TIMEOUT_S)[resource]
        told = _answered(answer).get("cleanup.policy")
        return "not told" if told is None else told.value

    return str(_patiently(ask, topic, "DescribeConfigs"))


def _never_written(settings: KafkaSettings, topic: str) -> bool:
    """Whether the topic never had a record, so that it cannot have lost one."""
    consumer = Consumer({**settings.librdkafka(), "group.id": "airflow-eos"})  # never joined
    try:
        return acknowledged_end(consumer, topic) == 0
    finally:
        consumer.close()


def _alter(admin: Any, topic: str) -> None:
    """Try to give the topic its settings; where that fails, the caller refuses the topic."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in _CONFIG.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    answer = admin.incremental_alter_configs([resource], request_timeout=_TIMEOUT_S)[resource]
    with suppress(KafkaException):  # the caller reads the topic's policy again
        _answered(answer)


def _answered(future: Any) -> Any:
    """Return an admin client's answer; KafkaException also where librdkafka's time ends late."""
    try:
        return future.result(_TIMEOUT_S)
    except TimeoutError:
        raise KafkaException(Code(Code._TIMED_OUT)) from None  # noqa: SLF001 - librdkafka's own code


def _mended(settings: KafkaSettings, topic: str, count: int) -> Remedy:
    where = f"--bootstrap-server {settings.bootstrap_servers}"
    if count != 1:
        return Remedy(
            change="drain all pipelines of this cluster",
            commands=(
                f"kafka-topics.sh {where} --delete --topic {topic}",
                _creating(settings, topic),
            ),
            start=True,
            costs="where it had records, the claims and notes that are removed with them",
        )
    config = ",".join(f"{name}={value}" for name, value in _CONFIG.items())
    alter = (
        f"kafka-configs.sh {where} --alter --entity-type topics --entity-name {topic} "
        f"--add-config {config}"
    )
    return Remedy(commands=(alter,), start=True)


def _creating(settings: KafkaSettings, topic: str) -> str:
    config = " ".join(f"--config {name}={value}" for name, value in _CONFIG.items())
    where = f"--bootstrap-server {settings.bootstrap_servers}"
    return f"kafka-topics.sh {where} --create --topic {topic} --partitions 1 {config}"


def partitions(client: Any, topic: str) -> int:
    """Return the number of the topic's partitions; 0 where it does not exist."""

    def ask() -> int:
        found = client.list_topics(topic, timeout=_ANSWER_S).topics[topic]
        if found.error is None:
            return len(found.partitions)
        if found.error.code() == Code.UNKNOWN_TOPIC_OR_PART:
            return 0
        raise KafkaException(found.error)

    return _patiently(ask, topic)


def acknowledged_end(consumer: Any, topic: str) -> int:
    """Return the offset behind the last record that was acknowledged before this call.

    The end in a fetch response can be before it: a new leader does not know at first how far its
    log was acknowledged. It refuses this request until it does (KIP-207).
    """
    tp = TopicPartition(topic, 0)

    def ask() -> int:
        _, end = consumer.get_watermark_offsets(tp, timeout=_ANSWER_S)
        return int(end)

    return _patiently(ask, topic)


def _require_there(client: Any, topic: str) -> None:
    if partitions(client, topic) == 0:
        raise KafkaException(Code(Code.LEADER_NOT_AVAILABLE))


def _patiently(ask: Callable[[], T], topic: str, operation: str = "Describe") -> T:
    """Repeat a request until the topic has a leader: a new topic takes a moment to get one."""
    deadline = Deadline(_TIMEOUT_S)
    while True:
        try:
            return ask()
        except KafkaException as error:
            if not _passes(error) or not deadline.pause():
                raise named(error, topic, operation) from error


def _passes(error: Any) -> bool:
    """Whether an error may pass by itself; a missing ACL or a wrong password does not."""
    final = {
        faults.TOPIC_AUTHORIZATION_FAILED,
        faults.CLUSTER_AUTHORIZATION_FAILED,
        Code._AUTHENTICATION,  # noqa: SLF001 - librdkafka's own codes begin with one
    }
    return error.args[0].code() not in final


def named(error: Any, topic: str, operation: str) -> KafkaError:
    """Translate librdkafka's error; ``operation`` is the one that an ACL has to allow."""
    code = error.args[0].code()
    doing = f"for topic {topic!r}, which remembers who owns a transactional id prefix"
    if code in {faults.TOPIC_AUTHORIZATION_FAILED, faults.CLUSTER_AUTHORIZATION_FAILED}:
        return faults.refusal(code, doing, acl=f"{operation} on Topic {topic!r}")
    if code == Code._AUTHENTICATION:  # noqa: SLF001 - librdkafka's own code
        return KafkaError(
            f"Kafka did not accept this client {doing}: {error.args[0].str()}. Check "
            "security.protocol, sasl.mechanism and its credentials, and ssl.*."
        )
    return KafkaUnavailableError(f"Kafka answered {error} {doing}. Check the brokers.")


def _not_made(topic: str, error: Any, settings: KafkaSettings) -> TopicError:
    return TopicError(
        f"Topic {topic!r}, which remembers who owns a transactional id prefix, is absent and could "
        f"not be made: {error}.",
        Remedy(change=f"grant Create on Topic {topic!r}", start=True),
        Remedy(commands=(_creating(settings, topic),), start=True),
    )


# --- the topic ------------------------------------------------------------------------------------
# Read and appended to without knowing what its records mean.


_STEP_S = 0.02


class CompactedTopicReader:
    """Reader of the whole topic; each read reuses the reader's connections."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._topic = topic
        self._consumer: Any = Consumer(
            {
                **settings.librdkafka(),
                "group.id": "airflow-eos",  # librdkafka wants one; it is never joined
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                # Our records are in no transaction; another's open one would hide all behind it.
                "isolation.level": "read_uncommitted",
                "allow.auto.create.topics": False,
                "fetch.wait.max.ms": 10,
            }
        )

    def read(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield key and value of each record up to the present end, in order; none if no topic.

        Raises:
            KafkaError: the topic may not be read, or (KafkaUnavailableError) no broker answers.
        """
        if partitions(self._consumer, self._topic) == 0:
            return
        end = acknowledged_end(self._consumer, self._topic)
        self._consumer.assign([TopicPartition(self._topic, 0, OFFSET_BEGINNING)])
        try:
            yield from self._to(end)
        finally:
            self._consumer.unassign()

    def close(self) -> None:
        """End librdkafka's threads; idempotent."""
        self._consumer.close()

    def _to(self, end: int) -> Iterator[tuple[bytes, bytes | None]]:
        silent_s = 0.0
        while silent_s < _TIMEOUT_S:
            # One by one: a call for many waits out its time even when it has the last one.
            message = self._consumer.poll(_STEP_S)
            if message is None:
                silent_s += _STEP_S
                continue
            silent_s, error = 0.0, message.error()
            if error is None:
                yield message.key() or b"", message.value()
                if message.offset() + 1 >= end:
                    return  # the end is told only after a fetch that finds no more
            elif error.code() == Code._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own code
                if message.offset() >= end:
                    return
            elif error.code() == faults.GROUP_AUTHORIZATION_FAILED:
                continue  # librdkafka looks for the coordinator of its unused group
            elif not error.retriable():
                raise named(KafkaException(error), self._topic, "Read")
        raise KafkaUnavailableError(
            f"Topic {self._topic!r} cannot be read to its end. Check the brokers."
        )


class Appender:
    """Appender of records; a flush waits until all in-sync replicas have acknowledged them."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._settings = settings
        self._topic = topic
        self._failure: Any = None
        self._refused: Any = None
        self._files = settings.files()
        self._producer: Any = self._made()

    def _made(self) -> Any:
        return Producer(
            {
                **self._settings.librdkafka(),
                "acks": "all",
                "linger.ms": 0,
                "socket.nagle.disable": True,
                # Keep the order of records, also when librdkafka repeats some.
                "max.in.flight.requests.per.connection": 1,
                "message.timeout.ms": int(_TIMEOUT_S * 1000),
                "error_cb": self._hear,
            }
        )

    def _take_up_renewed_files(self) -> None:
        """Make the client anew where a TLS file was renewed: librdkafka reads them only once.

        It lives for months. While a certificate and its key do not fit, the client before stays.
        """
        found = self._settings.files()
        if found == self._files:
            return
        with suppress(KafkaException):
            made = self._made()
            self.close()  # its records are before ours
            self._producer, self._files = made, found

    def connect(self) -> None:
        """Ask for the topic's metadata, so that the first record waits for no connection.

        Raises:
            KafkaError: the topic may not be described, or (KafkaUnavailableError) nobody answers.
        """
        partitions(self._producer, self._topic)

    def append(self, key: bytes, value: bytes | None) -> None:
        """Begin to append a record; a value of None is a tombstone."""
        self._take_up_renewed_files()
        self._producer.produce(self._topic, key=key, value=value, partition=0, on_delivery=self._on)

    def flush(self) -> None:
        """Wait until all appended records are acknowledged.

        Raises:
            KafkaError: some records were not acknowledged; they may be in the topic all the same.
        """
        self._refused = None
        left = self._producer.flush(_TIMEOUT_S + _ANSWER_S)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise named(KafkaException(self._refused or failure), self._topic, "Write")
        if left:
            raise KafkaUnavailableError(
                f"Topic {self._topic!r} did not acknowledge {left} records within "
                f"{_TIMEOUT_S:g} s. Check the brokers."
            )

    def close(self) -> None:
        """Flush for at most a few seconds, then end librdkafka's threads; idempotent.

        The threads would go on looking for their brokers until the garbage is collected.
        """
        if self._producer is not None:
            self._producer.flush(_ANSWER_S)
            self._producer = None

    def _hear(self, error: Any) -> None:
        """Keep why no record comes through: to librdkafka a login may be refused for a while."""
        if error.code() == Code._AUTHENTICATION:  # noqa: SLF001 - librdkafka's own code
            self._refused = error

    def _on(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failure = error
