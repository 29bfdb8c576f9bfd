"""Tasks load no logger that they do not use: each of Spark's Python workers would pay for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from structlog.testing import capture_logs

from airflow_eos.core.log import Log

ROOT = Path(__file__).parents[3]
LOADED = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sorted({"structlog", "rich"} & set(sys.modules)))
"""


def sinks():
    """The module of each sink, which is what its tasks import."""
    found = ["airflow_eos.kafka.sink", "airflow_eos.arrow.producer.writer"]
    kinds = sorted((ROOT / "airflow_eos/kinds").glob("*/sink.py"))
    return [*found, *(f"airflow_eos.kinds.{each.parent.name}.sink" for each in kinds)]


def test_no_sinks_tasks_load_what_only_a_driver_logs_with():
    assert len(sinks()) > 9
    command = [sys.executable, "-c", LOADED, *sinks()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == []


def test_a_line_reaches_structlog_as_it_is_set_up_when_it_is_written():
    log = Log("a.module")
    with capture_logs() as lines:
        log.warning("told", rows=3)
        log.info("said")
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("warning", "told"),
        ("info", "said"),
    ]
    assert lines[0]["rows"] == 3
