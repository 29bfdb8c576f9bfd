"""Recovery of other engines' Kafka transactions on a person's request: their promises, and a plan.

The form of an id decides nothing: transactions that the engine's own completed checkpoint promises
are committed, others open under a prefix that a person named are aborted, all others are left.
"""
