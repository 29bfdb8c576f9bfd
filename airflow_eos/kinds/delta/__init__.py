"""Delta tables: :mod:`.participant` is the port, :mod:`.log` the table and its log."""
