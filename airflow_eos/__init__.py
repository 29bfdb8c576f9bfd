"""Exactly-once Spark streaming to Kafka, run and recovered by Airflow.

Importing this package is cheap on purpose: DAG files, executors and the command line all do it.
"""

__version__ = "0.1.0"
