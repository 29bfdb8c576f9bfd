"""The write-ahead kind: rows wait in the checkpoint, and :mod:`.participant` calls a callable."""
