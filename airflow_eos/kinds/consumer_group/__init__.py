"""A consumer group of Kafka as a participant: offsets committed with the batch."""
