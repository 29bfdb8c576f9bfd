"""Kafka, by concept; read from the bottom: client, records, transactions, producer, librdkafka.

The doors are in ``kinds/kafka``: ``sink`` for a task that writes, ``participant`` for a driver.
"""
