"""A JVM of Spark that drivers come to and die in front of: ``python -m tests.support.host``.

A driver of the tests is the Python process, where everything of ours runs. Started with a JVM of
its own it takes ten seconds of two cores; attached to this one, two. Its SIGKILL ends its query
here by an error, and tasks that run outlive it, as on a cluster. Where the death of the JVM is the
point, ``Pipeline`` starts one for the driver.

It is the other machine of the tests: whoever takes over runs elsewhere, and task attempts may
fail (``local[2,3]``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from airflow_eos.local import avro_jars, spark_jars
from airflow_eos.sinks.source import tuned_spark_conf
from tests.support.jvm import spark_submit_opts

ROOT = Path(__file__).parents[2]
GATEWAY = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
_REST = "rest"
FAILPOINTS = ("EOS_FAILPOINTS", "EOS_FAILPOINTS_DIR")


class Host:
    """The process with the JVM, as the tests know it."""

    def __init__(self, jars: Sequence[Path] = (), conf: Mapping[str, str] | None = None) -> None:
        """``jars`` and ``conf`` of Spark, beside what every host has."""
        told = {"jars": [str(jar) for jar in jars], "conf": dict(conf or {})}
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": spark_submit_opts(),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, json.dumps(told)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def door(self) -> dict[str, str]:
        """Environment for one driver: a gateway of its own into the JVM."""
        return dict(zip(GATEWAY, self._asked("door"), strict=True))

    def rest(self) -> None:
        """End what drivers that died have left behind in it."""
        self._asked(_REST)

    def _asked(self, what: str) -> list[str]:
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().split()
        assert answer, "the host of the drivers has ended"
        return answer

    def close(self) -> None:
        """End it, and whatever runs in it."""
        self._process.stdin.close()
        try:
            self._process.wait(120)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()


@contextmanager
def running() -> Iterator[Host]:
    """A host for a while."""
    host = Host()
    try:
        yield host
    finally:
        host.close()


def attached() -> SparkSession:
    """In a driver: the host's Spark, where this process has been given a door to one."""
    gateway = launch_gateway()
    jvm = gateway.jvm
    context = jvm.org.apache.spark.SparkContext.getOrCreate()
    java = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(context)
    # Tasks that die at a failpoint need workers of their own; the others share what is warm.
    dying = os.environ.get(FAILPOINTS[0], "").startswith("task-")
    own = {name: os.environ[name] for name in FAILPOINTS} if dying else {}
    spark_context = SparkContext(gateway=gateway, jsc=java, environment=own)
    return SparkSession(spark_context).newSession()


def main() -> None:
    """Open a door for each line that comes, or end what goes on; end with the lines."""
    told = json.loads(sys.argv[1])
    jars = {*map(str, (*spark_jars(), *avro_jars())), *told["jars"]}
    builder = (
        SparkSession.builder.master("local[2,3]")
        .appName("host")
        .config("spark.jars", ",".join(sorted(jars)))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.streaming.stopTimeout", "60s")
        .config(map={**tuned_spark_conf(), **told["conf"]})
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    server = spark._jvm.org.apache.spark.api.python.Py4JServer
    for line in sys.stdin:
        if line.strip() == _REST:
            for query in list(spark._jsparkSession.sharedState().activeStreamingQueries().values()):
                query.stop()
            spark.sparkContext.cancelAllJobs()
            sys.stdout.write("rests\n")
            sys.stdout.flush()
            continue
        door = server(spark._jsc.sc().conf())
        door.start()
        sys.stdout.write(f"{door.getListeningPort()} {door.secret()}\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
