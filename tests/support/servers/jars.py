"""Jars of the servers that only tests start; run as a program, it fetches what most tests need."""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_eos.errors import EosError
from airflow_eos.local.jars import ensure, logging_jars, of_pyspark_hadoop, pyspark_jar, read_bundle

LOCKS = Path(__file__).parent / "locks"
_HADOOP = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "jcl-over-slf4j-*.jar")


def server_jars(name: str) -> tuple[Path, ...]:
    """Jars of the list ``locks/<name>.lock``, fetched the first time.

    Raises:
        LocalEnvironmentError: no Java, no pyspark, no network, or a jar that is not what it was.
    """
    return ensure(read_bundle(name, LOCKS))


def s3_jars() -> tuple[Path, ...]:
    """The jar of an S3 server (55 MB). Errors as :func:`server_jars`."""
    return server_jars("s3proxy-4.1.0")


def hadoop_jars() -> tuple[Path, ...]:
    """Jars of an HDFS and a YARN of pyspark's own Hadoop (56 MB).

    Errors as :func:`server_jars`, and where there is no list for that Hadoop.
    """
    return ensure(of_pyspark_hadoop("hadoop-minicluster", LOCKS))


def yarn_jars() -> tuple[Path, ...]:
    """What YARN's servers need beside :func:`hadoop_jars` (10 MB). Errors as there."""
    return (*hadoop_jars(), *server_jars("bouncycastle-1.82"))  # Hadoop 3.5's own


def hadoop_client_jars() -> tuple[Path, ...]:
    """Hadoop's client as pyspark ships it, and what it logs through. Errors as there."""
    return (*(pyspark_jar(pattern) for pattern in _HADOOP), *logging_jars())


def log4j_1_jars() -> tuple[Path, ...]:
    """What answers to the names of log4j 1, for YARN. Errors as :func:`server_jars`."""
    return (pyspark_jar("log4j-1.2-api-*.jar"),)


if __name__ == "__main__":
    try:
        s3_jars()
    except EosError as error:
        sys.exit(f"setup: {error}")
