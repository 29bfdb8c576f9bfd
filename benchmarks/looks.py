"""Times in ms a batch of the driver's checks before its tasks, its decision and its commits.

Timed are two looks, the range of the batch, its note on the broker, the decision itself, and the
requests to the broker about the batch's transactions: two of a row each, in a topic of four
partitions. On a local disk, with a broker on the same machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager

from airflow_eos.core.checkpoint import CheckpointStore, DecisionLog, OffsetLog, Verdict
from airflow_eos.core.checkpoint.pipeline import owner_of
from airflow_eos.core.checkpoint.terms import take_term
from airflow_eos.core.delivery.batch import Authority
from airflow_eos.core.protocol.decision import DEFAULT_PARTICIPANT, Outcome
from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.participant import KafkaParticipant
from airflow_eos.kafka.transactions.ownership import PrefixLedger
from benchmarks.prepared import decision_on, open_transactions, settings_of
from benchmarks.stage import Stage, refuse, staged

_PREFIX = "looks"
_TASKS = 2
_RETAINED = 100
_BATCHES = 200
_ENTRY = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7}\n{"in":{"0":1}}'


class Stopwatch:
    """Records the milliseconds of each part, batch by batch."""

    def __init__(self) -> None:
        self.found: defaultdict[str, list[float]] = defaultdict(list)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time the block as this part."""
        started = time.perf_counter()
        yield
        self.found[name].append((time.perf_counter() - started) * 1000)


def measure(stage: Stage, batches: int) -> Stopwatch:
    """Run so many batches, and time each part."""
    watch = Stopwatch()
    stage.topic("out")
    settings = settings_of(stage)
    store = CheckpointStore.open(stage.folder / _PREFIX)
    decisions = DecisionLog(store)
    ledger = PrefixLedger(settings, prefix=_PREFIX)
    wire = ConnectionPool(settings)
    with closing(KafkaParticipant(wire, ledger, name=DEFAULT_PARTICIPANT)) as participant:
        participant.claim(owner_of(store))
        tenure = take_term(store, taken_by="benchmark")
        offsets = OffsetLog(store, decisions)
        authority = Authority(tenure, offsets, ledger, evaluated_at=lambda _batch: 7)
        for batch in range(batches):
            store.put(f"offsets/{batch}", _ENTRY.encode())
            with watch.part("begin"):
                authority.begin(batch)
            works = open_transactions(wire, _PREFIX, _TASKS)
            with watch.part("list"):
                participant.open(except_known=[work.identity for work in works])
            with watch.part("alone"):
                participant.require_decidable(works)
            decision = decision_on(batch, 1, Verdict.COMMIT, works)
            with watch.part("decide"):
                decisions.record(decision)
            with watch.part("confirm"):
                authority.confirm(decision)
            with watch.part("commit"):
                outcomes = participant.commit(works)
            refuse("outcomes", set(outcomes.values()), {Outcome.COMMITTED})
            _end(store, decisions, batch)
    return watch


def _end(store: CheckpointStore, decisions: DecisionLog, batch: int) -> None:
    """Write the commit and prune old entries, as Spark and the driver do; not timed."""
    store.put(f"commits/{batch}", b"v1\n{}")
    old = batch - _RETAINED
    store.delete([f"offsets/{old}", f"commits/{old}"] if old >= 0 else [])
    decisions.prune(old)


def main() -> None:
    """Print the median and the ninth decile of each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=_BATCHES)
    batches = parser.parse_args().batches
    with staged() as stage:
        watch = measure(stage, batches)
    for part, times in watch.found.items():
        steady = sorted(times[len(times) // 4 :])
        ninth = steady[len(steady) * 9 // 10]
        print(f"{part:8} p50 {statistics.median(steady):5.2f} ms  p90 {ninth:5.2f} ms")


if __name__ == "__main__":
    main()
