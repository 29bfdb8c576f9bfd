"""Files on HDFS from executors, which have neither the driver's connection nor its Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.support.servers.hdfs import EmbeddedHdfs


@pytest.mark.cluster
def test_executors_of_their_own_write_files_on_hdfs(hdfs: EmbeddedHdfs, tmp_path: Path) -> None:
    home, source = tmp_path / "spark", tmp_path / "in"
    source.mkdir()
    home.mkdir()  # a local cluster's workers write into it
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    for file in range(2):
        rows = [json.dumps({"id": 50 * file + row, "day": f"d{row % 3}"}) for row in range(50)]
        (source / f"{file}.json").write_text("\n".join(rows))
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.files.hdfs_app", source, hdfs.url],
        env=os.environ | {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-5000:]
    assert f"read {list(range(100))}" in ended.stdout
