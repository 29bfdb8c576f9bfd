"""The Kafka sink: :mod:`.sink`, and beside it what it refuses and reads back."""
