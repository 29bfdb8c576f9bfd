"""Find Java and what pyspark brings along: Ivy and a log4j binding."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from airflow_eos.errors import LocalEnvironmentError

MINIMUM_JAVA = 17
_LOGGING = ("slf4j-api-*.jar", "log4j-api-*.jar", "log4j-core-*.jar", "log4j-slf4j2-impl-*.jar")
_HADOOP = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "jcl-over-slf4j-*.jar")


@cache
def java_program() -> str:
    """Path of a Java of at least ``MINIMUM_JAVA``: of ``JAVA_HOME`` (as Spark does), else of PATH.

    Raises:
        LocalEnvironmentError: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java, where = _java(), f"in JAVA_HOME ({home})" if home else "on PATH"
    if java is None:
        raise LocalEnvironmentError(
            f"found no java {where}; Spark and Kafka need Java {MINIMUM_JAVA}: "
            "install a JDK or JRE and set JAVA_HOME"
        )
    version = java_version()
    if version is None or version < MINIMUM_JAVA:
        raise LocalEnvironmentError(
            f"the java {where} is version {version or 'unknown'}; Spark and Kafka need "
            f"Java {MINIMUM_JAVA} or later: install it and set JAVA_HOME"
        )
    return java


def java_version() -> int | None:
    """Major version of the Java that Spark takes here; None where there is none that tells."""
    java = _java()
    if java is None:
        return None
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    return parse_java_version(answer.stderr + answer.stdout)


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")


def parse_java_version(text: str) -> int | None:
    """Major version that ``java -version`` names; None where the text names none.

    Java 8 and before call themselves ``1.8``.
    """
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


def pyspark_version() -> str:
    """Version of the installed pyspark.

    Raises:
        LocalEnvironmentError: pyspark is not installed.
    """
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise _no_pyspark() from None


def ivy_jar() -> Path:
    """The Ivy that pyspark ships.

    Raises:
        LocalEnvironmentError: pyspark is not installed, or without its jars.
    """
    return _pyspark_jar("ivy-*.jar")


def logging_jars() -> tuple[Path, ...]:
    """slf4j and log4j as pyspark ships them: the broker logs through them.

    Raises:
        LocalEnvironmentError: pyspark is not installed, or without its jars.
    """
    return tuple(_pyspark_jar(pattern) for pattern in _LOGGING)


def hadoop_client_jars() -> tuple[Path, ...]:
    """Hadoop's client as pyspark ships it, and what it logs through.

    Raises:
        LocalEnvironmentError: pyspark is not installed, or without its jars.
    """
    return (*(_pyspark_jar(pattern) for pattern in _HADOOP), *logging_jars())


def log4j_1_jars() -> tuple[Path, ...]:
    """What answers to the names of log4j 1, for YARN. Errors as :func:`logging_jars`."""
    return (_pyspark_jar("log4j-1.2-api-*.jar"),)


def hadoop_version() -> str:
    """Version of the Hadoop that pyspark ships. Errors as :func:`hadoop_client_jars`."""
    return _pyspark_jar(_HADOOP[0]).stem.removeprefix("hadoop-client-api-")


def _pyspark_jar(pattern: str) -> Path:
    # Not by importing pyspark: that takes half a second and is not needed to find a folder.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise _no_pyspark()
    folder = Path(spec.origin).parent / "jars"
    found = sorted(folder.glob(pattern))
    if not found:
        raise LocalEnvironmentError(
            f"found no {pattern} in {folder}; the pyspark there has no jars, as pyspark-client: "
            "install the full pyspark of the same version over it"
        )
    return found[-1]


def _no_pyspark() -> LocalEnvironmentError:
    return LocalEnvironmentError(
        "pyspark is not installed, and its Ivy fetches the jars: "
        "pip install 'airflow-provider-eos[spark]'"
    )
