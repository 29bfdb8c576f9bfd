"""Starts the demo's stage: a broker, a topic full of orders, an Airflow with the example DAGs."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from airflow_eos.local import EmbeddedKafka, spark_jars
from airflow_eos.local.jars import java_program
from airflow_eos.sinks.source import tuned_spark_conf
from demo.airflow import PrivateAirflow
from demo.orders import ORDER_ID_HEADER, write_orders
from demo.patience import slowness
from demo.scenario import failpoints

if TYPE_CHECKING:
    from demo.story import Story

Source = Literal["spark", "arrow"]
_APPS: dict[Source, str] = {"spark": "orders_etl.py", "arrow": "orders_arrow.py"}
INPUT, OUTPUT, REJECTED = "orders", "orders.clean", "orders.rejected"
ORDER_ID = f"headers.{ORDER_ID_HEADER}"
DAGS = {"eos_orders_etl", "eos_recovery", "eos_watchdog"}
STALL_AFTER_S = 10.0
NOTICED_S = 20
"""Seconds without a heartbeat after which Airflow calls a task dead; more on a busy machine."""

_PARTITIONS = 4
_ROWS_A_BATCH = 10_000
_CLONE = Path(__file__).parents[1]
_BROKER = {
    # By default the broker aborts old transactions every 10 s; the fourth act waits for that.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """The broker, Airflow and folders that the acts use."""

    kafka: dict[str, object]
    airflow: PrivateAirflow
    checkpoint: Path
    hits: Path

    def was_hit(self, failpoint: str) -> bool:
        """Whether the failpoint has killed the app."""
        return (self.hits / f"{failpoint}.hit").exists()

    def arm(self, failpoint: str) -> None:
        """Let the failpoint kill the next life of the app, even if it has killed an earlier one."""
        (self.hits / f"{failpoint}.hit").unlink(missing_ok=True)


@contextmanager
def stage(orders: int, story: Story, source: Source) -> Iterator[Stage]:
    """Start broker and Airflow, and write the orders; no process is left at the end.

    Raises:
        LocalEnvironmentError: Java, Airflow or Spark is missing.
    """
    java_program()
    jars = spark_jars() if source == "spark" else ()
    with ExitStack() as resources:
        work = resources.enter_context(_work_folder(story))
        airflow = resources.enter_context(
            PrivateAirflow(work / "airflow", _CLONE / "dags", tell=story.say)
        )
        story.say("Starting a Kafka broker")
        broker = resources.enter_context(EmbeddedKafka(_BROKER))
        for topic in (INPUT, OUTPUT, REJECTED):
            broker.create_topic(topic, _PARTITIONS)
        story.say("Starting Airflow: scheduler, DAG processor, triggerer, API server")
        kafka: dict[str, object] = {"bootstrap.servers": broker.bootstrap_servers}
        set_up = Stage(kafka, airflow, work / "checkpoint", work / "hits")
        set_up.hits.mkdir()
        set_up.checkpoint.mkdir()
        with story.live() as live:
            live.say("Waiting until Airflow has made its database")
            airflow.start(
                connections=_connections(kafka),
                settings={"EOS_ORDERS_ETL": _pipeline(set_up, work, source, jars)},
                noticed_s=round(NOTICED_S * slowness()),
            )
        with story.live(orders) as live:
            write_orders(
                broker.bootstrap_servers,
                INPUT,
                orders,
                lambda written: live.say("Writing orders", written),
            )
        story.say(f"Wrote {orders:,} orders to the topic {INPUT!r}; about 2 % are malformed")
        with story.live() as live:
            live.say("Waiting until Airflow has read the DAGs")
            airflow.wait_until_ready(DAGS)
        story.say(f"Airflow is ready: {airflow.url} (no login; gone when the demo ends)")
        yield set_up


@contextmanager
def _work_folder(story: Story) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix="airflow-eos-demo-")).resolve()
    try:
        yield work
    except Exception:
        (work / "trace.log").write_text(traceback.format_exc(), encoding="utf-8")
        story.say(f"That went wrong. Its trace, Airflow's logs and the checkpoint are in {work}")
        raise
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)


def _connections(kafka: dict[str, object]) -> dict[str, dict[str, object]]:
    cores = min(2, os.cpu_count() or 1)
    return {
        "kafka_default": {"conn_type": "kafka", "extra": kafka},
        "spark_default": {"conn_type": "spark", "host": f"local[{cores}]"},
    }


def _pipeline(on: Stage, work: Path, source: Source, jars: tuple[Path, ...]) -> dict[str, object]:
    """Return the settings that differ from the example DAGs' defaults."""
    slow = slowness()
    return {
        "checkpoint": str(on.checkpoint),
        "input_topic": INPUT,
        "output_topic": OUTPUT,
        "dead_letter_topic": REJECTED,
        "order_id": ORDER_ID,
        "application": str(_CLONE / "spark_apps" / _APPS[source]),
        # The Arrow source needs no jars and no packages, so not those of the example DAG either.
        "packages": None,
        "jars": ",".join(str(jar) for jar in jars) or None,
        "conf": tuned_spark_conf()
        | {
            "spark.ui.enabled": "false",
            "spark.local.dir": str(work / "spark"),
            "spark.driver.memory": "1g",
        },
        "env": {
            "EOS_FAILPOINTS": failpoints(),
            "EOS_FAILPOINTS_DIR": str(on.hits),
            "SPARK_LOCAL_IP": "127.0.0.1",
            # An app of less than a minute gains nothing from the optimising compiler.
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
        # Batches small enough to be killed in. The app goes on until it is asked to drain, so that
        # it is alive however late the last act's next try looks.
        "trigger": "1 second",
        "max_offsets_per_trigger": _ROWS_A_BATCH,
        "batch_within": 20 * slow,
        "recover_within": 54 * slow,
        "transaction_timeout": 75 * slow,
        # Here the recovery DAG recovers; by default the task restarts the app by itself.
        "max_restarts": 0,
        "retries": 0,
        "stall_after": STALL_AFTER_S,
        # The demo does not wait for the full minute: it starts the watchdog itself.
        "watchdog_schedule": None,
    }
