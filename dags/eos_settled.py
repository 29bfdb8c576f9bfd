"""DAGs that run on settled rows: ``eos_settled`` emits asset events for batches that are settled.

Each event is about a range of batches, with their offsets, rows and watermark; each batch is in
exactly one event, whoever is killed (docs/events.md). ``eos_settled_report`` runs on each event;
``eos_rows_are_there`` acts once, on the event by which rows up to an offset are there;
``eos_settled_cut`` reads several outputs up to the batch of its event (docs/cuts.md);
``eos_settled_bell`` runs at once and possibly twice, by a watcher. Change the settings for a
pipeline of your own.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import (
    DAG,
    Asset,
    AssetWatcher,
    Param,
    dag,
    get_current_context,
    task,
)

from airflow_eos.operators import EmitSettledBatchesOperator
from airflow_eos.triggers.settled import SettledBatchesWatcher

CHECKPOINT = "/data/checkpoints/orders-etl"
SETTLED = Asset("orders_etl.settled")
BELL = Asset(
    "orders_etl.bell",
    watchers=[
        AssetWatcher(
            name="orders_etl_settled",
            trigger=SettledBatchesWatcher(checkpoint_location=CHECKPOINT, at_least=100),
        )
    ],
)
SINCE = datetime(2026, 1, 1, tzinfo=UTC)  # without one Airflow 3.3 runs @continuous only once

with DAG(
    "eos_settled", schedule="@continuous", start_date=SINCE, max_active_runs=1, tags=["airflow-eos"]
) as eos_settled:
    EmitSettledBatchesOperator(
        task_id="emit",
        asset=SETTLED,
        checkpoint_location=CHECKPOINT,
        every=timedelta(seconds=10),
        deferrable=True,
        retries=3,
        retry_delay=timedelta(seconds=10),
    )


def settled_now() -> list[tuple[Any, dict[str, Any]]]:
    """Return the events that started this run, with their ``extra``; to be called in a task."""
    from airflow_eos.events import SettledEvent

    told = get_current_context()["triggering_asset_events"].get(SETTLED, ())
    events = ((SettledEvent.from_extra(each.extra), each.extra) for each in told)
    return sorted((each for each in events if each[0]), key=lambda each: each[0].from_batch)


@dag(schedule=[SETTLED], tags=["airflow-eos"])
def eos_settled_report() -> None:
    """Work on exactly the rows from ``start`` to ``end``, which no other run gets."""

    @task
    def report() -> list[str]:
        """Print the events; a run may have several, of adjacent ranges."""
        for event, _ in settled_now():
            print(event.key, event.rows, event.start, "to", event.end)  # noqa: T201 - the log
        return [event.key for event, _ in settled_now()]

    report()


@dag(
    schedule=[SETTLED],
    params={
        "upto": Param({"orders": {"0": 1_000_000}}, type="object", description="next offset"),
    },
    tags=["airflow-eos"],
)
def eos_rows_are_there() -> None:
    """Do something once, when all rows before these offsets are there."""

    @task.short_circuit
    def are_there() -> bool:
        """Return True in one run alone: exactly one event crosses the offsets."""
        from airflow_eos.events import crosses

        wanted = get_current_context()["params"]["upto"]
        return any(crosses(event, wanted) for event, _ in settled_now())

    @task
    def act() -> None:
        """Replace with your own work."""

    are_there() >> act()


@dag(schedule=[SETTLED], tags=["airflow-eos"])
def eos_settled_cut() -> None:
    """Read several outputs up to the same batch, though the pipeline goes on meanwhile."""

    @task
    def read() -> dict[str, Any]:
        """Return where to stop in each output: ``cuts.rows``, ``cuts.files`` take the cut."""
        from airflow_eos import cuts

        _, extra = settled_now()[-1]
        cut = cuts.from_event(extra)
        return {name: each.at for name, each in cut.positions.items()}

    read()


@dag(schedule=[BELL], tags=["airflow-eos"])
def eos_settled_bell() -> None:
    """Run soon after every hundred batches; it may run twice for the same batches."""

    @task
    def look() -> None:
        """Replace with your own work, harmless when it is done twice."""

    look()


eos_settled_report()
eos_rows_are_there()
eos_settled_cut()
eos_settled_bell()
