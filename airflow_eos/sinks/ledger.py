"""Who owns a transactional id prefix, remembered by Kafka itself.

A checkpoint cannot know that another one uses its prefix, or that it was restored from an older
copy: both would fence and abort what is promised elsewhere, or deliver again. So the driver notes
in a consumer group ``airflow-eos.<prefix>`` the location of the checkpoint (as the metadata of a
committed offset) and the number of batches delivered (as the offset itself). The note follows a
batch without waiting for it; it lags by a moment and never runs ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from airflow_eos.errors import KafkaError, KafkaUnavailableError, OwnershipError
from airflow_eos.kafka import faults

if TYPE_CHECKING:
    from confluent_kafka import KafkaException

    from airflow_eos.kafka.settings import KafkaSettings

_TIMEOUT_S = 30.0
_ANSWER_S = 5.0
_ACLS = {
    faults.GROUP_AUTHORIZATION_FAILED: "Group",
    faults.TOPIC_AUTHORIZATION_FAILED: "Topic",
}
T = TypeVar("T")


class PrefixLedger:
    """The note of one prefix, kept as partition 0 of the sink's topic."""

    def __init__(self, settings: KafkaSettings, *, prefix: str, topic: str, location: str) -> None:
        from confluent_kafka import Consumer

        self.group = f"airflow-eos.{prefix}"
        self._prefix = prefix
        self._topic = topic
        self._location = location
        self._refusal: Any = None
        self._consumer = Consumer(
            {**settings.librdkafka(), "group.id": self.group, "enable.auto.commit": False}
        )

    def claim(self, *, planned_batches: int) -> None:
        """Refuse a prefix of another checkpoint, or a checkpoint older than what it delivered.

        Args:
            planned_batches: how many batches the checkpoint's offset log knows.

        Raises:
            OwnershipError: with what was found and how to go on.
            KafkaError: the group may not be read, or (KafkaUnavailableError) does not answer.
        """
        delivered, owner = self._read()
        if owner and owner != self._location:
            raise OwnershipError(
                f"Transactional id prefix {self._prefix!r} belongs to the checkpoint {owner}, not "
                f"to {self._location}. Choose another prefix. If you moved the checkpoint on "
                f"purpose, delete the consumer group {self.group!r} and start again."
            )
        if delivered > planned_batches:
            raise OwnershipError(
                f"Checkpoint {self._location} knows {planned_batches} batches, but {delivered} "
                f"were delivered under its prefix {self._prefix!r}: it was lost, or restored from "
                "an older copy, and would deliver rows again. Restore the newest copy. To start "
                f"anew knowingly, use a new prefix, or delete the consumer group {self.group!r}."
            )
        self._write(delivered, wait=True)

    def delivered(self, batch_id: int) -> None:
        """Note that a batch is delivered; does not wait for the broker."""
        self._write(batch_id + 1, wait=False)

    def close(self) -> None:
        """Leave the group; the note stays."""
        self._consumer.close()

    def _read(self) -> tuple[int, str]:
        from confluent_kafka import TopicPartition

        asked = [TopicPartition(self._topic, 0)]
        [note] = self._patiently(lambda: self._consumer.committed(asked, timeout=_ANSWER_S))
        return max(note.offset, 0), note.metadata or ""

    def _write(self, delivered: int, *, wait: bool) -> None:
        from confluent_kafka import TopicPartition

        note = [TopicPartition(self._topic, 0, delivered, metadata=self._location)]
        if wait:
            self._patiently(lambda: self._consumer.commit(offsets=note, asynchronous=False))
        else:
            self._consumer.commit(offsets=note, asynchronous=True)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask until the group has a coordinator: a new cluster takes seconds to choose one."""
        from confluent_kafka import KafkaException

        try:
            return Retrying(
                retry=retry_if_exception(self._passes),
                wait=wait_exponential(multiplier=0.05, max=1),
                stop=stop_after_delay(_TIMEOUT_S),
                reraise=True,
            )(ask)
        except KafkaException as error:
            raise self._named(error) from error

    def _passes(self, error: BaseException) -> bool:
        """Whether a Kafka error is one that time heals; a missing ACL is not."""
        from confluent_kafka import KafkaError as Code
        from confluent_kafka import KafkaException

        if not isinstance(error, KafkaException):
            return False
        heard = self._consumer.poll(0)  # a call that times out has its reason told here
        if heard is not None and heard.error() is not None:
            self._refusal = heard.error()
        reasons = {error.args[0].code(), self._refusal.code() if self._refusal else None}
        final = {*_ACLS, Code._AUTHENTICATION}  # noqa: SLF001 - librdkafka's own begin with one
        return not reasons & final

    def _named(self, error: KafkaException) -> KafkaError:
        """What to do about it, with the ACL where one is missing."""
        for reason in (error.args[0], self._refusal):
            if reason is not None and reason.code() in _ACLS:
                resource = _ACLS[reason.code()]
                name = self.group if resource == "Group" else self._topic
                return faults.refusal(
                    reason.code(),
                    f"for the consumer group {self.group!r}, which remembers who owns the prefix",
                    acl=f"Read on {resource} {name!r}",
                )
        return KafkaUnavailableError(
            f"The consumer group {self.group!r}, which remembers who owns the prefix, does not "
            f"answer: {error}. Check the brokers."
        )
