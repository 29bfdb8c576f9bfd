"""A callable of the user as a participant: :mod:`.participant` is the port, :mod:`.deliver` it."""
