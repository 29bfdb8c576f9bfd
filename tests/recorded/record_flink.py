"""A real Flink job, killed between checkpoint and commit, recovered by us, and restored.

``python -m tests.recorded.record_flink FOLDER [INCREMENTING|POOLING]``: Flink of the benchmarks'
version copies a topic, exactly once; SIGKILL comes as soon as a checkpoint is complete, before its
transactions are committed. ``airflow-eos foreign recover`` ends what it left, which is checked, and
the checkpoint's ``_metadata`` is kept in FOLDER. Flink restored from that checkpoint goes on to the
end: every row once.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from airflow_eos.kafka.client.connection import ConnectionPool
from airflow_eos.kafka.client.settings import KafkaSettings
from airflow_eos.kafka.transactions.identity import OpenTransaction
from airflow_eos.kafka.transactions.listing import list_lookalikes
from airflow_eos.local import EmbeddedKafka
from airflow_eos.local.rows import read_rows, write_rows
from benchmarks import flink

_TASKS = 2
_TRIES = 5
_BEFORE = 3
"""So many checkpoints are let be before the one that is not committed."""


class Job:
    """One Flink job, and the rows that it is to copy."""

    def __init__(self, kafka: EmbeddedKafka, folder: Path, naming: str, number: int) -> None:
        self.kafka = kafka
        self.prefix = f"flink-{naming.lower()}-{number}"
        self.folder = folder / self.prefix
        self.folder.mkdir(parents=True)
        self._naming = naming
        self.input = kafka.create_topic(f"{self.prefix}-in", _TASKS)
        self.output = kafka.create_topic(f"{self.prefix}-out", _TASKS)
        self.written = 0
        self._feeding = threading.Event()

    def start(self, restore: Path | None = None) -> subprocess.Popen[str]:
        """With the rows that have come; those that come later are copied as well."""
        with (self.folder / f"log-{'again' if restore else 'first'}.txt").open("w") as log:
            return flink.start(
                heap="768m",
                log=log,
                bootstrap=self.kafka.bootstrap_servers,
                input=self.input,
                output=self.output,
                prefix=self.prefix,
                naming=self._naming,
                etl=False,
                bounded=False,
                checkpoint_ms=1500,
                checkpoints=str(self.folder / "checkpoints"),
                parallelism=_TASKS,
                producer={"transaction.timeout.ms": "900000"},
                restore=restore.as_uri() if restore else None,
            )

    def feed(self) -> None:
        """A hundred rows a second, until told otherwise."""
        while not self._feeding.wait(0.5):
            self.write(50)

    def write(self, count: int) -> None:
        """The next rows, each with a key of its own."""
        first, self.written = self.written, self.written + count
        rows = [(f"k{i}", f"v{i}") for i in range(first, self.written)]
        write_rows(self.kafka.bootstrap_servers, self.input, rows)

    def stop_feeding(self) -> None:
        """No more rows."""
        self._feeding.set()

    def opened(self) -> list[OpenTransaction]:
        """What is open under the prefix."""
        settings = KafkaSettings.from_librdkafka(
            {"bootstrap.servers": self.kafka.bootstrap_servers}
        )
        with closing(ConnectionPool(settings, client_id="record")) as wire:
            return [each for each, _ in list_lookalikes(wire, self.prefix)]

    def delivered(self) -> Counter[str | None]:
        """The keys that a reader sees, and how often."""
        return Counter(key for key, _ in read_rows(self.kafka.bootstrap_servers, self.output))


def main() -> None:
    """One job after another until one is killed at the right moment; then the proof."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Flink does not outlive us
    target, naming = Path(sys.argv[1]), (sys.argv[2:] or ["INCREMENTING"])[0]
    scratch = Path(tempfile.mkdtemp(prefix="airflow-eos-flink-"))
    _say(f"logs and checkpoints: {scratch}")
    longest = {"transaction.max.timeout.ms": "900000"}
    with EmbeddedKafka(longest) as kafka:
        for number in range(_TRIES):
            job = Job(kafka, scratch, naming, number)
            checkpoint = _killed(job)
            told = _recovered(job, checkpoint, "plan")
            commits = [each for each in told["steps"] if each["action"] == "commit"]
            steps = [(each["action"], each["transactional_id"]) for each in told["steps"]]
            _say(f"{checkpoint.name}: {steps}")
            if commits:
                _keep(job, checkpoint, target / naming.lower(), told)
                _prove(job, checkpoint)
                return
    raise SystemExit(f"{_TRIES} jobs were killed, and each had committed before it died")


def _killed(job: Job) -> Path:
    """Start, and kill as soon as a checkpoint is complete; its folder."""
    job.write(200)
    process = job.start()
    feeding = threading.Thread(target=job.feed, daemon=True)
    feeding.start()
    try:
        newest = _wait_for(job, process, _BEFORE)
        following = newest.parent / f"chk-{int(newest.name[4:]) + 1}" / "_metadata"
        latest = time.monotonic() + 60
        while not following.exists():  # as quick as can be: the commit comes within milliseconds
            assert time.monotonic() < latest, f"no checkpoint after {newest}"
    finally:
        flink.stop(process)
        job.stop_feeding()
        feeding.join()
    return following.parent


def _wait_for(job: Job, process: subprocess.Popen[str], number: int) -> Path:
    deadline = time.monotonic() + 150
    while time.monotonic() < deadline and process.poll() is None:
        for found in (job.folder / "checkpoints").glob("*/chk-*/_metadata"):
            if int(found.parent.name[4:]) >= number:
                return found.parent
        time.sleep(0.05)
    raise SystemExit(f"Flink made no checkpoint; see {job.folder}")


def _recovered(job: Job, checkpoint: Path, *command: str) -> Any:
    """What our command says, as data."""
    line = ["airflow_eos", "foreign", *command, str(checkpoint), "--prefix", job.prefix, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", *line, "-b", job.kafka.bootstrap_servers],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in {0, 3, 4}:
        raise SystemExit(f"{line}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout)


def _keep(job: Job, checkpoint: Path, target: Path, told: Any) -> None:
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(checkpoint / "_metadata", target / "_metadata")
    facts = {
        "flink": flink.VERSION,
        "connector": flink.CONNECTOR,
        "prefix": job.prefix,
        "checkpoint": int(checkpoint.name[4:]),
        "open": [
            [each.transactional_id, each.producer_id, each.producer_epoch] for each in job.opened()
        ],
        "commits": [
            [e["transactional_id"], e["producer_id"], e["producer_epoch"]]
            for e in told["steps"]
            if e["action"] == "commit"
        ],
    }
    (target / "recording.json").write_text(json.dumps(facts, indent=2) + "\n")


def _prove(job: Job, checkpoint: Path) -> None:
    """Recovered: the promised rows are there, nothing is open. Restored: every row once."""
    before = job.delivered()
    _recovered(job, checkpoint, "recover", "--yes")
    after = job.delivered()
    assert not job.opened(), job.opened()
    assert after.total() > before.total(), (before.total(), after.total())
    assert set(after.values()) == {1}
    _say(f"delivered {before.total()}, after our recovery {after.total()} of {job.written}")
    job.write(100)
    process = job.start(restore=checkpoint)
    try:
        deadline = time.monotonic() + 150
        while job.delivered().total() < job.written and time.monotonic() < deadline:
            time.sleep(1)
        time.sleep(3)  # another checkpoint or two: nothing may come twice
    finally:
        flink.stop(process)
    seen = job.delivered()
    log = (job.folder / "log-again.txt").read_text()
    assert re.fullmatch("k[0-9]+", str(next(iter(seen))))
    lost, twice = job.written - len(seen), seen.total() - len(seen)
    _say(f"restored from {checkpoint.name}: {job.written} rows, {lost} lost, {twice} twice")
    if lost or twice:
        raise SystemExit(log[-3000:])


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
