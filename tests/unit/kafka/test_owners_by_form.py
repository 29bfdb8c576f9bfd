"""Whose a transactional id is, by its form alone; what more than one program uses is nobody's."""

from __future__ import annotations

import pytest

from airflow_eos.kafka.transactions.identity import owner_of

UUID = "5f7e0c0e-2b5c-4a39-9d0d-6a7b8c9d0e1f"


@pytest.mark.parametrize(
    ("transactional_id", "owner"),
    [
        ("orders-eos-3-0", "airflow-eos"),
        ("orders-3-17", "Flink"),
        ("Sink: Unnamed-cbc357ccb763df2852fee8c4fc7d55f2-4", "Flink"),
        (f"shop-{UUID}-1", "Kafka Streams"),
        (f"_confluent-ksql-default_query_CTAS_1-{UUID}-2", "Kafka Streams"),
        ("shop-0_3", "Kafka Streams"),
        ("connect-cluster-workers", "Kafka Connect"),
        ("workers-jdbc-source-0", ""),
        ("orders-service-1", ""),
        ("tx", ""),
        (UUID, ""),
        ("", ""),
    ],
)
def test_whose_an_id_is(transactional_id: str, owner: str) -> None:
    assert owner_of(transactional_id) == owner
