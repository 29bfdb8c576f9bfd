"""Absolute values by key as a participant.

:mod:`.participant` is the port, :mod:`.target` what it asks of a system, and :mod:`.redis`,
:mod:`.postgres`, :mod:`.mysql` and :mod:`.hbase` are some.
"""
