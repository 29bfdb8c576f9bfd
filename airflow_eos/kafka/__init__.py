"""The Kafka side: settings, connections, transactions and their outcomes, writing."""
