"""A callable of the user as a participant: :mod:`.participant` calls it."""
