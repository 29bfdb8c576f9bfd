"""One verb in a process of its own, for tests that stop or kill it: see ``Stage.start``."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from airflow_eos.core.checkpoint import DecisionLog
from tests.integration.lake.kinds import KINDS
from tests.integration.lake.stage import Asked, Stage, batch


def main() -> None:
    asked = msgspec.json.decode(sys.argv[1], type=Asked)
    stage = Stage(KINDS[asked.kind], Path(asked.folder))
    if asked.verb == "prepare":
        writer = stage.sink.opened(0, 0)
        writer.write(batch(1))
        writer.prepare("0" * 32)
        return
    works = DecisionLog(stage.store).of_batch(asked.batch)[asked.attempt - 1].works
    participant = stage.participant()
    chosen = [work for work in works if asked.key in ("", work.key)]
    for outcome in participant.commit(chosen).values():
        print(outcome.value)  # noqa: T201


if __name__ == "__main__":
    main()
