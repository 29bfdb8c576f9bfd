"""What a driver asks before its tasks and before its commits, on a local disk and a broker beside.

Two looks, the range of the batch, its note on the broker, and the decision itself: ms a batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from contextlib import closing

from airflow_eos.checkpoint import CheckpointStore, Decision, DecisionLog, OffsetLog, Verdict
from airflow_eos.checkpoint.terms import take_term
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from airflow_eos.sinks.authority import Authority
from benchmarks.stage import staged

_RETAINED = 100
_BATCHES = 200
_ENTRY = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7}\n{"in":{"0":1}}'


def measure(batches: int) -> dict[str, list[float]]:
    """Milliseconds of each part, batch by batch."""
    found: dict[str, list[float]] = {"begin": [], "decide": [], "confirm": []}
    with staged() as stage:
        store = CheckpointStore.open(stage.folder / "looks")
        settings = KafkaSettings.from_librdkafka({"bootstrap.servers": stage.bootstrap})
        decisions = DecisionLog(store)
        with closing(PrefixLedger(settings, prefix="looks")) as ledger:
            ledger.claim(store.location)
            tenure = take_term(store, taken_by="benchmark")
            offsets = OffsetLog(store, decisions)
            authority = Authority(tenure, offsets, ledger, evaluated_at=lambda _batch: 7)
            for batch in range(batches):
                store.put(f"offsets/{batch}", _ENTRY.encode())
                started = time.perf_counter()
                entry = authority.begin(batch)
                begun = time.perf_counter()
                decision = _decision(batch, entry)
                decisions.record(decision)
                decided = time.perf_counter()
                authority.confirm(decision)
                found["begin"].append((begun - started) * 1000)
                found["decide"].append((decided - begun) * 1000)
                found["confirm"].append((time.perf_counter() - decided) * 1000)
                store.put(f"commits/{batch}", b"v1\n{}")
                old = batch - _RETAINED
                store.delete([f"offsets/{old}", f"commits/{old}"] if old >= 0 else [])
                decisions.prune(old)
    return found


def _decision(batch: int, offsets: str) -> Decision:
    return Decision(
        batch_id=batch,
        attempt=1,
        verdict=Verdict.COMMIT,
        offsets=offsets,
        term=1,
        decided_by="benchmark",
        decided_at_ms=0,
        nonce=uuid.uuid4().hex,
    )


def main() -> None:
    """Print the median and the ninth decile of each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=_BATCHES)
    for part, times in measure(parser.parse_args().batches).items():
        steady = sorted(times[len(times) // 4 :])
        ninth = steady[len(steady) * 9 // 10]
        print(f"{part:8} p50 {statistics.median(steady):5.2f} ms  p90 {ninth:5.2f} ms")


if __name__ == "__main__":
    main()
