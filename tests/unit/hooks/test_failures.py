"""What no retry can heal is not retried, and what may be retried is the user's to tell apart."""

from __future__ import annotations

from datetime import timedelta

import airflow.sdk
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_eos.errors import NO_RETRY_HEALS, AppFailedError, KafkaUnavailableError
from airflow_eos.hooks.arguments import no_retry_where_useless
from airflow_eos.operators import SparkStreamingOperator


@pytest.mark.parametrize("kind", NO_RETRY_HEALS)
def test_what_only_a_person_can_change_fails_where_no_policy_is_asked(kind):
    named = pytest.raises(AirflowFailException, match=rf"{kind.__name__}: why")
    with named, no_retry_where_useless():
        raise kind("why")


@pytest.mark.skipif(
    not hasattr(airflow.sdk, "ExceptionRetryPolicy"),
    reason="Airflow < 3.3 has no ExceptionRetryPolicy",
)
def test_a_retry_policy_is_the_users_and_knows_our_errors_by_name():
    delay = timedelta(minutes=10)
    rule = airflow.sdk.RetryRule("airflow_eos.errors.AppFailedError", retry_delay=delay)
    policy = airflow.sdk.ExceptionRetryPolicy(rules=[rule])
    task = SparkStreamingOperator(
        task_id="etl", application="a.py", checkpoint_location="/c", retry_policy=policy
    )
    assert task.retry_policy is policy
    with pytest.raises(AppFailedError) as failed, no_retry_where_useless():
        raise AppFailedError("it failed twice")
    assert policy.evaluate(failed.value, 1, 3).retry_delay == delay
    assert policy.evaluate(KafkaUnavailableError("away"), 1, 3).retry_delay is None
