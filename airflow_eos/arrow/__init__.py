"""The fast path: record batches and a Kafka source in Arrow, which never reach the JVM."""
