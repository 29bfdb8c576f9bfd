"""Iceberg tables: :mod:`.participant` is the port, :mod:`.log` the table and its snapshots."""
