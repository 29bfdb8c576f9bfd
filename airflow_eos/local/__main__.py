"""``python -m airflow_eos.local``: fetch every jar now, so that nothing is downloaded later."""

from __future__ import annotations

import sys

from airflow_eos.errors import EosError
from airflow_eos.local.jars import avro_jars, broker_jars, spark_jars

try:
    broker_jars()
    spark_jars()
    avro_jars()
except EosError as error:
    sys.exit(f"airflow-eos: {error}")
