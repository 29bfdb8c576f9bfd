"""Files in a folder of a local disk: :mod:`.participant` is the port, :mod:`.disk` what it asks."""
