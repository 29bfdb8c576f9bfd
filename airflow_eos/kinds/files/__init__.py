"""Files in a folder or a bucket: :mod:`.participant` is the port, :mod:`.place` the storage."""
