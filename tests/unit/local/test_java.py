from __future__ import annotations

import pytest

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local import jars as java


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25-ea" 2025-09-16', 25),
        ("Error: could not find libjava.so", None),
    ],
)
def test_the_major_version_is_read_from_what_java_says(text, version):
    assert java.parse_java_version(text) == version


@pytest.fixture
def fresh_lookup():
    java.java_program.cache_clear()
    yield
    java.java_program.cache_clear()


def test_a_missing_java_is_named_with_what_to_do(monkeypatch, tmp_path, fresh_lookup):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalEnvironmentError, match=r"found no java in JAVA_HOME.*install"):
        java.java_program()


def test_an_old_java_is_refused_with_its_version(monkeypatch, tmp_path, fresh_lookup):
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalEnvironmentError, match=r"is version 11;.*Java 17 or later"):
        java.java_program()
