"""The data types and the pure rules of delivery: no I/O, and nothing of Kafka, Spark or Airflow.

Read in this order: :mod:`.decision` (what a task prepares, and what is decided about it),
:mod:`.promise` (which promised rows are still missing), :mod:`.participant` (the port: all that the
driver and recovery know of a participant).
"""
