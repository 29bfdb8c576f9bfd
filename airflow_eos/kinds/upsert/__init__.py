"""The upsert kind: rows replace each other by key, the newest version wins.

:mod:`.participant` is the port, :mod:`.target` the port of a target system, and :mod:`.redis`,
:mod:`.postgres`, :mod:`.mysql` and :mod:`.hbase` are such targets.
"""
