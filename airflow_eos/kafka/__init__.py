"""Access to Kafka; lowest layer first: client, records, transactions, producer, librdkafka.

Entry points are in ``kinds/kafka``: ``sink`` for a task that writes, ``participant`` for a driver.
"""
