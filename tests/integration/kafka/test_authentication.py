"""A task writes, another process commits and a reader reads, with every kind of login.

And where the login is wrong, the error says so, soon, and shows no secret.
"""

from __future__ import annotations

import logging
import traceback
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from airflow_eos.errors import KafkaError, KafkaUnavailableError
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.coordinator import end_transactions
from airflow_eos.kinds.kafka.sink import PRODUCERS, Producer, open_writer
from airflow_eos.local import EmbeddedKafka
from tests.integration.kafka.logins import (
    MARKER,
    MECHANISMS,
    SECRET,
    WRONG,
    Authority,
    broker_with_logins,
    mutual_tls,
    sasl,
    token_endpoint,
)

Config = dict[str, str]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[EmbeddedKafka]:
    with broker_with_logins(authority) as running:
        yield running


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with token_endpoint() as url:
        yield url


@pytest.fixture
def deliver(broker: EmbeddedKafka, read: Callable[..., list[Any]]) -> Callable[..., list[bytes]]:
    """``deliver(config, producer)``: what is read of two rows that were written and committed."""

    def through(config: Config, producer: Producer) -> list[bytes]:
        topic = broker.create_topic(f"out-{uuid.uuid4().hex[:8]}")
        settings = KafkaSettings.from_librdkafka(config)
        writer: Any = open_writer(settings, producer=producer, topic=topic, compression="lz4")
        with writer._wire:
            writer.begin(f"{topic}-0-0", 60_000)
            writer.write(pa.RecordBatch.from_pydict({"value": ["a", "b"]}))
            written = writer.prepare()
        with ConnectionPool(settings) as wire:
            end_transactions(wire, [written.identity], commit=True)
        return [m.value() for m in read(topic, broker.bootstrap_servers)]

    return through


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_rows_are_delivered_with_a_login(broker, endpoint, deliver, mechanism, producer):
    assert deliver(sasl(broker, mechanism, SECRET, endpoint), producer) == [b"a", b"b"]


@pytest.mark.parametrize("producer", PRODUCERS)
def test_rows_are_delivered_with_a_certificate(broker, authority, deliver, producer):
    assert deliver(mutual_tls(broker, authority, "client"), producer) == [b"a", b"b"]


def refused(attempt: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> str:
    """Refused soon, as what repeating does not heal, and no secret is shown."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(KafkaError) as error:
        attempt()
    assert not isinstance(error.value, KafkaUnavailableError), error.value
    assert MARKER not in "".join(traceback.format_exception(error.value)) + caplog.text
    return str(error.value)


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_secret_is_said_and_not_shown(
    broker, endpoint, deliver, caplog, mechanism, producer
):
    said = refused(lambda: deliver(sasl(broker, mechanism, WRONG, endpoint), producer), caplog)
    if mechanism == "OAUTHBEARER":
        assert f"No token from {endpoint}: HTTP status 401" in said
        assert "client secret" in said
    else:
        assert "did not accept this client" in said
        assert "sasl.mechanism and its credentials" in said


@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("who", ["stranger", None], ids=["another authority's", "none"])
def test_a_certificate_that_the_broker_does_not_trust(
    broker, authority, deliver, caplog, who, producer
):
    said = refused(lambda: deliver(mutual_tls(broker, authority, who), producer), caplog)
    assert "did not accept this client" in said
    assert "ssl.certificate.location" in said
