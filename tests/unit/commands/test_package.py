"""The archive for Spark: the same bytes every time, and enough to work alone."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest

from airflow_eos.errors import ConfigurationError
from airflow_eos.supervision.packaging import build_archive


def test_the_same_sources_give_the_same_bytes(tmp_path):
    one, two = build_archive(tmp_path / "a.zip"), build_archive(tmp_path / "b.zip")

    assert one.read_bytes() == two.read_bytes()


def test_it_holds_the_spark_side_and_no_secrets_of_the_other(tmp_path):
    names = zipfile.ZipFile(build_archive(tmp_path / "a.zip")).namelist()

    assert "airflow_eos/checkpoint/decisions.py" in names
    assert "airflow_eos/kinds/kafka/sink.py" in names
    assert not [n for n in names if "operators" in n or "__pycache__" in n or n.endswith("cli.py")]


def test_it_works_alone_where_airflow_is_not_installed(tmp_path):
    """Imported from the zip, with Airflow and Spark made impossible to import."""
    archive = build_archive(tmp_path / "airflow_eos.zip")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "sys.modules['airflow'] = sys.modules['pyspark'] = None\n"
        "import airflow_eos.recovery.execute, airflow_eos.kafka.producer.writer, airflow_eos\n"
        "assert sys.argv[1] in airflow_eos.__file__, airflow_eos.__file__\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(archive)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


def test_another_kind_of_file_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"as \.zip"):
        build_archive(tmp_path / "a.tar")
