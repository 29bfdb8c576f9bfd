"""Settling a promise on a broker that answers what Kafka answers: the log decides, nobody guesses.

The real listing, ending and asking of the log, on the broker of the model, in one process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_eos.core.protocol.decision import Outcome
from airflow_eos.errors import KafkaUnavailableError
from airflow_eos.kafka.participant import settle
from airflow_eos.kafka.transactions.coordinator import TransactionCoordinator, end_transactions
from airflow_eos.kafka.transactions.identity import OffsetRange, PreparedTransaction
from tests.model.broker import Broker, State
from tests.model.wire import TOPIC, FakeWire, no_answer

pytestmark = pytest.mark.unit

TIMEOUT_MS = 60_000


class _Losing(FakeWire):
    def __init__(self, kafka: Kafka) -> None:
        super().__init__(kafka.broker)
        self._kafka = kafka

    def _end(self, message: Any) -> Any:
        answer = super()._end(message)
        if self._kafka.lost:
            self._kafka.lost -= 1
            raise no_answer()
        return answer


@dataclass
class Kafka:
    """A broker, and a wire to it that loses the replies of the next ``lost`` requests to end."""

    version: int
    lost: int = 0
    broker: Broker = field(init=False)
    wire: Any = field(init=False)

    def __post_init__(self) -> None:
        self.broker = Broker(self.version, lambda *_: None)
        self.wire = _Losing(self)
        self.coordinator = TransactionCoordinator(self.wire)

    def prepared(self, task: int = 0) -> PreparedTransaction:
        identity = self.coordinator.init(f"etl-{task}-0", TIMEOUT_MS)
        written = self.broker.produce(identity, 0, ("a",))
        place = OffsetRange(TOPIC, 0, written.first, written.last)
        return PreparedTransaction(
            identity.transactional_id,
            identity.producer_id,
            identity.producer_epoch,
            (place,),
            1,
            "0" * 32,
            0,
            TIMEOUT_MS,
        )

    def ended(self, transaction: PreparedTransaction, *, commit: bool) -> None:
        end_transactions(self.wire, [transaction.identity], commit=commit)
        self.broker.settle_down()

    def settled(self, *transactions: PreparedTransaction) -> list[Outcome]:
        found = settle(self.wire, transactions)
        return [found[transaction.identity] for transaction in transactions]

    def delivered(self, transaction: PreparedTransaction) -> bool:
        self.broker.settle_down()
        return self.broker.transactions[transaction.identity].state is State.COMMITTED


@pytest.fixture(params=[1, 2], ids=["version-1", "version-2"])
def kafka(request: pytest.FixtureRequest) -> Kafka:
    return Kafka(request.param)


def test_what_is_open_is_committed(kafka):
    first, second = kafka.prepared(0), kafka.prepared(1)
    assert kafka.settled(first, second) == [Outcome.COMMITTED] * 2
    assert kafka.delivered(first)
    assert kafka.delivered(second)


def test_what_the_broker_timed_out_is_not_taken_for_committed(kafka):
    timed_out = kafka.prepared()
    kafka.broker.pass_time(TIMEOUT_MS)
    assert kafka.settled(timed_out) == [Outcome.ABORTED]


@pytest.mark.parametrize("committed", [True, False])
def test_a_fenced_one_is_what_the_log_says(kafka, committed):
    """Its id was taken again: the coordinator says PRODUCER_FENCED either way."""
    before = kafka.prepared()
    kafka.ended(before, commit=committed)
    kafka.prepared()
    expected = Outcome.COMMITTED if committed else Outcome.ABORTED
    assert kafka.settled(before) == [expected]


@pytest.mark.parametrize("committed", [True, False])
def test_one_whose_id_has_expired_is_what_the_log_says(kafka, committed):
    before = kafka.prepared()
    kafka.ended(before, commit=committed)
    kafka.broker.expire_ids()
    assert kafka.settled(before) == [Outcome.COMMITTED if committed else Outcome.ABORTED]


def test_one_past_retention_is_unknown_and_not_guessed(kafka):
    before = kafka.prepared()
    kafka.ended(before, commit=True)
    kafka.broker.expire_ids()
    kafka.broker.pass_retention()
    assert kafka.settled(before) == [Outcome.UNKNOWN]


def test_an_older_open_one_of_the_partition_hides_the_outcome_and_it_is_not_guessed(kafka):
    kafka.prepared(9)
    before = kafka.prepared(0)
    kafka.ended(before, commit=False)
    with pytest.raises(KafkaUnavailableError, match="still open"):
        kafka.settled(before)


def test_a_lost_reply_is_asked_for_again(kafka):
    open_one = kafka.prepared()
    kafka.lost = 1
    assert kafka.settled(open_one) == [Outcome.COMMITTED]
    assert kafka.delivered(open_one)


def test_silence_is_no_outcome(kafka):
    open_one = kafka.prepared()
    kafka.lost = 1000
    with pytest.raises(KafkaUnavailableError):
        kafka.settled(open_one)


def test_an_abort_by_identity_leaves_the_next_holder_of_the_id_alone(kafka):
    stale = kafka.prepared()
    later = kafka.prepared()
    kafka.ended(stale, commit=False)
    assert kafka.settled(later) == [Outcome.COMMITTED]
