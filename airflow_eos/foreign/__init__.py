"""Transactions of other engines, ended by a person's word: what was promised, and a plan.

Never by the form of a name: what the engine's own completed checkpoint promises is committed, what
else is open under a prefix that a person named is aborted, everything else is left.
"""
