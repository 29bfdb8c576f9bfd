"""The writer over confluent-kafka's producer."""
