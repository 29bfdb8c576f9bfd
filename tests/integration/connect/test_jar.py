"""What the wheel ships for Spark's JVM is what its own source makes, by any compiler at hand.

The jar is kept beside its source, and nothing builds it where the package is installed. Whoever
reads the source has to know that it is the one that runs: that its copy in the jar is the same, a
test of ``make unit`` says; that the classes are made of it, only a compiler can.
"""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from airflow_eos.sinks.format import JAR

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("javac") is None, reason="no JDK: nothing here can build it"),
]


def contents(jar: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(jar) as found:
        return {name: found.read(name) for name in found.namelist()}


def test_the_jar_is_what_the_compiler_makes_of_the_source(tmp_path: Path) -> None:
    built = tmp_path / "built.jar"
    subprocess.run([ROOT / "scripts" / "eos-sink-jar", built], check=True, timeout=300)
    found, shipped = contents(built), contents(JAR)
    assert found.keys() == shipped.keys()
    assert {name for name in found if found[name] != shipped[name]} == set()
    assert sum(name.endswith(".class") for name in found) > 2
