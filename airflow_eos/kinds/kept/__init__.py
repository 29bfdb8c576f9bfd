"""Rows that wait in the checkpoint for their decision, for systems that cannot prepare.

:mod:`.rows` is what lies in the checkpoint, :mod:`.participant` the verbs that both kinds share.
"""
