from __future__ import annotations

import kafka.errors as kafka_errors
import pytest

from airflow_eos.errors import KafkaError, TopicError, TransactionError
from airflow_eos.kafka.client import errors as faults
from airflow_eos.kafka.client.errors import ASK_AGAIN, NextStep, next_step

TABLE = {
    "NoError": NextStep.DONE,
    "ConcurrentTransactionsError": NextStep.AGAIN,
    "CoordinatorLoadInProgressError": NextStep.AGAIN,
    "CoordinatorNotAvailableError": NextStep.ELSEWHERE,
    "NotCoordinatorError": NextStep.ELSEWHERE,
    # The broker stumbles over its own timeout: found by the chaos suite, history 21000012.
    "UnknownError": NextStep.AGAIN,
    "RequestTimedOutError": NextStep.AGAIN,
    "NetworkExceptionError": NextStep.AGAIN,
    "NotEnoughReplicasError": NextStep.AGAIN,
    "InvalidTxnStateError": NextStep.LOOK,
    "ProducerFencedError": NextStep.LOOK,
    "InvalidProducerEpochError": NextStep.LOOK,
    "InvalidProducerIdMappingError": NextStep.LOOK,
    "TransactionalIdAuthorizationFailedError": None,
    "UnsupportedVersionError": None,
    "InvalidRequestError": None,
}


@pytest.mark.parametrize(("name", "expected"), TABLE.items())
def test_every_answer_of_the_coordinator_has_one_meaning(name, expected):
    assert next_step(getattr(kafka_errors, name).errno) is expected


def test_no_error_is_read_as_done():
    codes = set(kafka_errors.kafka_errors) - {0}
    assert not [code for code in codes if next_step(code) is NextStep.DONE]


def test_an_unheard_of_code_needs_a_person():
    assert next_step(9999) is None


def test_what_kafka_calls_retriable_is_asked_again():
    for code, kind in kafka_errors.kafka_errors.items():
        if issubclass(kind, kafka_errors.RetriableError):
            assert next_step(code) in ASK_AGAIN, kind


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (faults.TOPIC_AUTHORIZATION_FAILED, TopicError),
        (faults.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TransactionError),
        (faults.CLUSTER_AUTHORIZATION_FAILED, KafkaError),
    ],
)
def test_a_missing_acl_is_named(code, kind):
    error = faults.refusal(code, "while trying", acl="Write on Topic 'orders'")
    assert isinstance(error, kind)
    assert "Write on Topic 'orders'" in str(error)
    assert "AUTHORIZATION_FAILED" in str(error)
