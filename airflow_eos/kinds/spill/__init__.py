"""Spilled rows: they wait in the checkpoint for their decision, for systems that cannot prepare.

:mod:`.participant` has the files and verbs that both kinds share; :mod:`.task` writes the files.
"""
