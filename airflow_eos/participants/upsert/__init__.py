"""Absolute values by key as a participant.

:mod:`.participant` is the port, :mod:`.target` what it asks of a system, and :mod:`.redis`,
:mod:`.postgres` and :mod:`.mysql` are some.
"""
