"""Whose a transaction is, by the form of its id."""

from __future__ import annotations

import pytest

from airflow_eos.kafka.transactions.identity import belongs_to_prefix, transactional_id_of, whose


@pytest.mark.parametrize(
    ("transactional_id", "program"),
    [
        ("etl-0-7", "Flink"),
        ("etl-12-100000", "Flink"),
        ("etl-0b1e5a39-6d2c-4f0e-9d43-3a6c5f8b7e21-1", "Kafka Streams"),
        ("etl-0_1", "Kafka Streams"),
        ("etl-jdbc.source-0", "Kafka Connect"),
        ("etl-3", "a producer of its own"),
        ("etl", "a producer of its own"),
        ("etl-eos-0-7", ""),
        ("etl-eu-eos-0-1", ""),
        ("etl-eu-0-1", ""),
        ("etl2-0-1", ""),
        ("orders-0-1", ""),
    ],
)
def test_ids_of_others_are_told_by_their_form_and_are_never_ours(transactional_id, program):
    assert whose(transactional_id, "etl").startswith(program)
    assert bool(program) == bool(whose(transactional_id, "etl"))
    assert belongs_to_prefix(transactional_id, "etl") is (transactional_id == "etl-eos-0-7")


def test_our_own_ids_are_ours():
    assert belongs_to_prefix(transactional_id_of("etl", 3, 1), "etl")
    assert not belongs_to_prefix(transactional_id_of("etl-eu", 3, 1), "etl")
