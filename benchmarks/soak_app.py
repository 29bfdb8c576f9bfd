"""Two processes that ``benchmarks.soak`` watches: the app, and a trigger that waits for the app.

``app JSON`` runs the query until it is drained, and writes the time of each batch and, now and
then, its memory after a collection. ``trigger CHECKPOINT SUBMISSION`` runs the app's trigger.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from pathlib import Path
from typing import IO, Any

from benchmarks import spark
from benchmarks.stage import Elsewhere

TRIGGER = "100 milliseconds"
_READ_EVERY_S = 5.0
_COLLECT_EVERY_S = 60.0
_KEPT = 300
"""The batches whose progress Spark keeps: more than run between two reads."""


def app(told: dict[str, Any]) -> None:
    """Copy the topic ``input`` until drained, and write the figures."""
    stage = Elsewhere(told["bootstrap"], Path(told["folder"]))
    conf = {
        "spark.driver.memory": "1g",
        "spark.sql.streaming.numRecentProgressUpdates": str(_KEPT),
    }
    with spark.session(conf=conf) as session, (stage.folder / "told").open("w") as out:
        rows = spark.read(session, stage, "input")
        query = spark.start(
            "exactly_once", rows, stage, "soak", "output", {"processingTime": TRIGGER}
        )
        newest, collected_s = -1, 0.0
        while not query.awaitTermination(_READ_EVERY_S):
            newest = _tell(query, out, newest)
            if time.monotonic() - collected_s > _COLLECT_EVERY_S:
                collected_s = time.monotonic()
                print(json.dumps({"at": newest, **_left(session)}), file=out, flush=True)
        _tell(query, out, newest)


def _tell(query: Any, out: IO[str], newest: int) -> int:
    for progress in query.recentProgress:
        if progress.batchId > newest and progress.numInputRows:
            newest = progress.batchId
            took = progress.durationMs["triggerExecution"]
            print(json.dumps({"batch": newest, "ms": took}), file=out)
    out.flush()
    return newest


def _left(session: Any) -> dict[str, float]:
    """Return the use after a collection: MiB of the JVM, and objects of this process."""
    jvm = session.sparkContext._jvm  # noqa: SLF001 - no public way
    jvm.java.lang.System.gc()
    memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    gc.collect()
    return {
        "heap": memory.getHeapMemoryUsage().getUsed() / 2**20,
        "off_heap": memory.getNonHeapMemoryUsage().getUsed() / 2**20,
        "objects": len(gc.get_objects()),
    }


async def trigger(checkpoint: str, submission: str) -> None:
    """Run the trigger as a triggerer does, and print its event."""
    from airflow_eos.ops.supervision.trigger_watch import TriggerPoll
    from airflow_eos.triggers.app import AppTrigger

    watch = TriggerPoll(checkpoint, submission, (), 0.0, 600.0, "drain")
    event = await anext(AppTrigger(watch=watch.as_dict(), poke_interval=1.0).run())
    print(json.dumps(event.payload), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "app":
        app(json.loads(sys.argv[2]))
    else:
        asyncio.run(trigger(*sys.argv[2:]))
