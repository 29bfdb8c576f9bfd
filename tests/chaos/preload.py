"""Imported by the fork server, so that its children need not; makes no thread and no connection."""

import confluent_kafka
import crc32c
import kafka
import lz4.frame
import pandas as pd  # pyarrow looks for it at the first array
import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from confluent_kafka import admin

from airflow_eos.arrow.producer import writer
from airflow_eos.arrow.records import kernels as loops
from airflow_eos.core.delivery import takeover
from tests.chaos import driver, workers

LOADED = (
    confluent_kafka,
    crc32c,
    kafka,
    lz4.frame,
    pd,
    pc,
    pyspark,
    admin,
    writer,
    takeover,
    driver,
)
loops.warm()
WARM = pa.concat_batches(workers.record_batches([(b"key", b"value")] * 20, "run")).num_rows
