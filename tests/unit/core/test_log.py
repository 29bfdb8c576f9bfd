"""Tasks load no logger that they do not use, since each worker would pay; no log has a password."""

from __future__ import annotations

import secrets
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


def test_what_a_failed_client_had_in_its_hands_is_in_no_log(capsys):
    """rich printed the local variables of each frame: the password of Kafka, when it was away."""
    password = secrets.token_hex(8)

    def connect(told):
        raise OSError(f"no answer to {len(told)} settings")

    try:
        connect({"sasl_plain_password": password})
    except OSError:
        Log("a.module").exception("left_open", batch=7)
    said = capsys.readouterr().out
    assert "left_open" in said
    assert "in connect" in said
    assert "OSError: no answer to 1 settings" in said
    assert password not in said


def test_nobody_logs_past_it():
    apart = {"core/log.py", "local/jars.py"}  # of which the latter knows no house, and no client
    package = ROOT / "airflow_eos"
    named = {
        str(each.relative_to(package))
        for each in package.rglob("*.py")
        if "structlog" in each.read_text()
    }
    assert named == apart
