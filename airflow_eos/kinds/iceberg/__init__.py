"""The Iceberg kind: :mod:`.participant` is the port, with the table and its snapshots."""
