"""Delta tables: :mod:`.participant` is the port, with the table and its log."""
