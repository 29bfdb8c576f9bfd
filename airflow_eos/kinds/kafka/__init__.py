"""The Kafka kind: :mod:`.sink` writes, :mod:`.participant` settles, :mod:`.preflight` checks."""
