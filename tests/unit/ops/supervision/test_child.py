"""What an app that is started gets: a private folder, distributions, a rehearsal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import pytest

from airflow_eos.core.checkpoint import CheckpointStore
from airflow_eos.core.checkpoint.rehearsal import (
    REPORT,
    OutputComparison,
    RehearsalReport,
    RehearsalRequest,
    RowDifference,
    RowExample,
)
from airflow_eos.core.protocol.decision import encode
from airflow_eos.errors import AppFailedError, ConfigurationError
from airflow_eos.ops.packaging import (
    Secrets,
    build_environment,
    files_of,
    needed,
    private_folder,
    remove_leftovers,
)
from airflow_eos.ops.rehearsal import masked, rehearse, report_view
from airflow_eos.ops.tables import as_text

CHECKPOINT = "s3a://lake/checkpoints/orders"
# A task that has handed over its secrets and now runs, until it is killed.
TASK = """
import sys, time
from airflow_eos.ops.packaging import Secrets, private_folder
with private_folder(sys.argv[1]) as folder:
    Secrets(kafka={"sasl.password": "hunter-two"}, storage={}).hand_over(folder)
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def task():
    started = []

    def start(checkpoint: str = CHECKPOINT) -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", TASK, checkpoint], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_password_that_a_killed_task_left_is_gone_at_the_next_start(task):
    killed, left = task()
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert (left / "kafka.json").exists(), "SIGKILL leaves nobody to clean up"

    with private_folder(CHECKPOINT) as folder:
        remove_leftovers(folder, CHECKPOINT)
        assert not left.exists()
        assert folder.exists()


def test_a_task_that_lives_keeps_its_folder(task):
    _, in_use = task()
    with private_folder(CHECKPOINT) as folder:
        remove_leftovers(folder, CHECKPOINT)
        assert (in_use / "kafka.json").exists()


def test_another_pipelines_folder_is_left_alone(task):
    """Its app may have outlived its task, and still read the package that lies there."""
    killed, left = task("s3a://lake/checkpoints/others")
    killed.kill()
    killed.wait()
    with private_folder(CHECKPOINT) as folder:
        remove_leftovers(folder, CHECKPOINT)
        assert left.exists()


def test_a_link_that_somebody_planted_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    with private_folder(CHECKPOINT) as folder:
        (tmp_path / f"{folder.name}-planted").symlink_to(precious)
        remove_leftovers(folder, CHECKPOINT)
    assert precious.exists()


def test_a_folder_that_its_task_removes_meanwhile_keeps_no_start_back(tmp_path, monkeypatch):
    """That of a standby that ends, on the same machine."""
    monkeypatch.setattr(Path, "glob", lambda *_: iter([tmp_path / "gone"]))
    remove_leftovers(tmp_path / "own", CHECKPOINT)


def test_what_is_handed_over_is_not_shown():
    assert "hunter" not in repr(Secrets(kafka={"a": "hunter"}, storage={"b": "hunter"}))


# --- What travels to executors: what is required, as it is installed here, and not Spark itself ---


def test_the_base_is_what_an_executor_needs_and_neither_airflow_nor_spark():
    found = needed()
    assert {"pyarrow", "numpy", "msgspec", "kafka-python", "lz4"} <= found.keys()
    assert not found.keys() & {"apache-airflow", "pyspark", "pyspark-client", "typer", "psycopg"}


def test_an_extra_brings_its_own_and_what_those_require():
    assert {"psycopg", "psycopg-binary"} <= needed(["postgres"]).keys()
    assert {"pandas", "python-dateutil"} <= needed(also=["pandas"]).keys()


def test_spark_is_left_out_although_an_extra_names_it():
    assert not needed(["spark"]).keys() & {"pyspark", "pyspark-client", "py4j"}


def test_an_extra_of_nobody_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigurationError, match=r"no extra oracle; it has .*postgres"):
        needed(["oracle"])


def test_what_is_not_installed_is_refused_by_name():
    with pytest.raises(ConfigurationError, match="no-such-thing, which --also requires, is not"):
        needed(also=["no_such.thing"])


def test_programs_and_compiled_files_stay_here():
    names = files_of(metadata.distribution("numpy"))
    assert any(name.endswith(".so") for name in names)
    assert not [name for name in names if name.startswith("..") or name.endswith(".pyc")]
    assert all(path.is_file() for path in names.values())


def test_a_distribution_that_is_installed_from_its_sources_is_refused():
    with pytest.raises(ConfigurationError, match="editable mode"):
        files_of(metadata.distribution("airflow-provider-eos"))


def test_a_file_of_another_kind_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"end with \.tar\.gz"):
        build_environment(tmp_path / "environment.zip")


# --- An app that rehearses is started, read and shown; its secrets are not ------------------------


CHANGED = RowDifference(1, 2, 3, (RowExample("changed", "k7", "value=old", "value=new"),))
FOUND = RehearsalReport(
    checkpoint="/data/c",
    compared=(
        OutputComparison(0, "", "not known", why="no decision says which rows it has"),
        OutputComparison(1, "sink", "differs", 100, 101, CHANGED),
    ),
    copied_bytes=7,
    seconds=2.0,
    error="",
)


def test_the_report_of_the_app_is_what_is_found(tmp_path: Path):
    told = RehearsalRequest("/data/c", str(tmp_path / "s"), 2)
    CheckpointStore.open(told.scratch).put(REPORT, encode(FOUND))
    assert rehearse([sys.executable, "-c", "pass"], told, tmp_path) == FOUND


def test_an_app_that_compared_nothing_failed_whatever_its_status(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "hunter2")
    told = RehearsalRequest("/data/c", str(tmp_path / "s"), 2)
    says = (
        "import os; print('no', os.environ['DB_PASSWORD'], os.environ['EOS_CHECKPOINT_LOCATION'])"
    )
    with pytest.raises(AppFailedError, match="did not rehearse on /data/c") as failed:
        rehearse([sys.executable, "-c", says], told, tmp_path)
    assert "no *** /data/c" in str(failed.value)


def test_secrets_that_were_given_by_name_are_masked():
    command = ["app.py", "--sasl-password", "one", "--conf=x.secret=two", "--topic", "orders"]
    said = masked("one two three orders", command, {"API_TOKEN": "three"})
    assert said == "*** *** *** orders"


def test_people_see_what_differs_by_key_and_what_is_not_known():
    said = as_text(report_view(FOUND))
    assert "100 → 101" in said
    assert "no decision" in said
    assert "value=new" in said
    assert "OTHER ROWS" in said
