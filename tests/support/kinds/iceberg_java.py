"""Apache Iceberg's own planner, in Java: which files it reads of tables of an SQL catalog."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from airflow_eos.local.jars import java_program
from tests.support.servers.jars import hadoop_client_jars, server_jars

NULL = "\\N"
_SOURCE = Path(__file__).parents[2] / "java" / "PlanIcebergFiles.java"


class Planned(NamedTuple):
    """A file that a scan reads: the spec that it says, the folder of its partition, its path."""

    spec: int
    folder: str
    path: str


def planned(database: Path, warehouse: str, *scans: tuple[str, str, str]) -> list[list[Planned]]:
    """Return the files of each scan (table, column, value); all files for the column ``*``.

    Args:
        database: of the SQL catalog, whose name is ``default``.
        warehouse: of the catalog.
        scans: what is asked; the value as a text, or ``NULL``.
    """
    jars = (*server_jars("iceberg-rest-1.10.1"), *hadoop_client_jars())
    command = [java_program(), "-cp", os.pathsep.join(map(str, jars)), str(_SOURCE)]
    given = "".join("\t".join(each) + "\n" for each in scans)
    ran = subprocess.run(
        [*command, f"jdbc:sqlite:{database}", warehouse],
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = [line.split("\t") for line in ran.stdout.splitlines()]
    return [
        [Planned(int(spec), folder, path) for at, spec, folder, path in told if int(at) == number]
        for number in range(len(scans))
    ]


def texts(values: Sequence[object]) -> list[str]:
    """Return values as Java reads them."""
    return [
        NULL
        if value is None
        else value.hex()
        if isinstance(value, bytes)
        else str(value).replace("inf", "Infinity").replace("nan", "NaN")
        for value in values
    ]
