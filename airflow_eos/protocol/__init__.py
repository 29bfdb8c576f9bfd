"""The nouns and the pure rules of delivery: no I/O, and no word of Kafka, Spark or Airflow.

Read in this order: :mod:`.decision` (what a task prepares), :mod:`.decision` (what is decided about
it), :mod:`.promise` (what of that is still missing), :mod:`.participant` (the port: all that the
driver and recovery know of a system that takes part).
"""
