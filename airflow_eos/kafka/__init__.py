"""Kafka, by concept; read from the bottom: client, records, transactions, producer, librdkafka.

:mod:`.writers` is the door for a task that writes, :mod:`.transactions.settle` for a driver.
"""
