"""A Kafka consumer group as a participant: the source's offsets are committed with the batch."""
