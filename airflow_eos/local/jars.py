"""Fetch jars once, check them, and keep them in the user's cache folder.

The Ivy inside pyspark does the fetching, with a cache and a user folder of its own: a half-filled
``~/.m2`` or ``~/.ivy2`` of somebody else can make Ivy fail, and ours must not spoil theirs.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
import structlog

from airflow_eos.errors import LocalEnvironmentError
from airflow_eos.local.java import hadoop_version, ivy_jar, java_program, pyspark_version
from airflow_eos.local.lockfile import Bundle, Jar, locked_versions, nearest_patch, read_bundle

log = structlog.get_logger(__name__)

KAFKA_VERSION = "4.3.0"
S3PROXY_VERSION = "4.1.0"
HBASE_VERSION = "2.6.1"
BOUNCYCASTLE_VERSION = "1.82"  # Hadoop 3.5's own
S3MOCK_VERSION = "5.2.0"
_ATTEMPTS = 2  # a download cut short is common enough to try once more; Ivy keeps what it has


def broker_jars() -> tuple[Path, ...]:
    """Jars of the Kafka broker, fetched the first time (44 MB, about half a minute).

    Raises:
        LocalEnvironmentError: no Java, no pyspark, no network, or a jar that is not what it was.
    """
    return ensure(read_bundle(f"kafka-{KAFKA_VERSION}"))


def s3_jars() -> tuple[Path, ...]:
    """The jar of an S3 server, fetched the first time (55 MB). Errors as :func:`broker_jars`."""
    return ensure(read_bundle(f"s3proxy-{S3PROXY_VERSION}"))


def hbase_jars() -> tuple[Path, ...]:
    """Jars of HBase and its REST server, fetched the first time (65 MB).

    Errors as :func:`broker_jars`.
    """
    return ensure(read_bundle(f"hbase-{HBASE_VERSION}"))


def s3mock_jars() -> tuple[Path, ...]:
    """The jar of an S3 server that lets several creates win (31 MB): a negative control.

    Errors as :func:`broker_jars`.
    """
    return ensure(read_bundle(f"s3mock-{S3MOCK_VERSION}"))


def hadoop_jars() -> tuple[Path, ...]:
    """Jars of an HDFS and a YARN of pyspark's own Hadoop, fetched the first time (56 MB).

    Errors as :func:`broker_jars`, and where there is no list for that Hadoop.
    """
    return ensure(read_bundle(f"hadoop-minicluster-{_hadoop_version('hadoop-minicluster')}"))


def yarn_jars() -> tuple[Path, ...]:
    """What YARN's servers need beside :func:`hadoop_jars` (10 MB). Errors as there."""
    return (*hadoop_jars(), *ensure(read_bundle(f"bouncycastle-{BOUNCYCASTLE_VERSION}")))


def s3a_jars() -> tuple[Path, ...]:
    """Jars of ``s3a://`` for pyspark's own Hadoop, fetched the first time (690 MB).

    Nearly all of it is the AWS SDK, which is published as one jar. Errors as :func:`hadoop_jars`.
    """
    return ensure(read_bundle(f"hadoop-aws-{_hadoop_version('hadoop-aws')}"))


def _hadoop_version(prefix: str) -> str:
    version = hadoop_version()
    known = locked_versions(prefix)
    if version not in known:
        raise LocalEnvironmentError(
            f"pyspark {pyspark_version()} brings Hadoop {version}; the jars of {prefix} are listed "
            f"for {', '.join(known)}: install a pyspark that brings one of these"
        )
    return version


def spark_jars() -> tuple[Path, ...]:
    """Jars of Spark's Kafka connector that fit the installed pyspark, fetched the first time.

    Give them to Spark as ``spark.jars``, joined with commas. Spark's patch releases come before
    their connectors reach every repository, and before our lists: a patch that has no list takes
    the nearest one of its minor version, and a warning says which.

    Raises:
        LocalEnvironmentError: no Java, no pyspark or of a minor version we have no list for, no
            network, or a jar that is not what it was.
    """
    return _that_fit_pyspark("spark", "spark-sql-kafka-0-10_2.13")


def avro_jars() -> tuple[Path, ...]:
    """The jar of Spark's ``from_avro``. Errors, and which one fits, as :func:`spark_jars`."""
    return _that_fit_pyspark("avro", "spark-avro_2.13")


def _that_fit_pyspark(prefix: str, artifact: str) -> tuple[Path, ...]:
    version = pyspark_version()
    known = locked_versions(prefix)
    chosen = nearest_patch(version, known)
    if chosen is None:
        raise LocalEnvironmentError(
            f"pyspark {version} is installed; the connector's jars are listed for "
            f"{', '.join(known)}: install one of these, or give Spark "
            f"--packages org.apache.spark:{artifact}:{version}"
        )
    if chosen != version:
        log.warning(
            "connector_of_another_patch",
            pyspark=version,
            connector=chosen,
            hint=f"there is no list for {version}; should they not fit, install pyspark=={chosen}",
        )
    return ensure(read_bundle(f"{prefix}-{chosen}"))


def cache_folder() -> Path:
    """Folder that keeps downloads: ``AIRFLOW_EOS_CACHE``, else the user's cache folder."""
    override = os.environ.get("AIRFLOW_EOS_CACHE")
    return Path(override) if override else platformdirs.user_cache_path("airflow-eos")


def ensure(bundle: Bundle) -> tuple[Path, ...]:
    """The bundle's jars, fetched the first time and checked against their checksums."""
    root = cache_folder() / "jars"
    folder = root / bundle.folder_name
    if not _complete(folder, bundle):
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root / ".lock"):
            if not _complete(folder, bundle):  # another process may have fetched it meanwhile
                _fetch(bundle, folder)
    return tuple(folder / jar.file_name for jar in bundle.jars)


def _complete(folder: Path, bundle: Bundle) -> bool:
    # Sizes only: a folder is moved into place after every checksum has been compared.
    return all(_size(folder / jar.file_name) == jar.size for jar in bundle.jars)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # closing the file lets go of it
        yield


def _fetch(bundle: Bundle, folder: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder.parent))
    try:
        module = work / "ivy.xml"
        module.write_text(bundle.ivy_module(), encoding="utf-8")
        fetched = work / "jars"
        log = folder.parent / f"{bundle.name}.log"
        if not any(_run_ivy(bundle, module, fetched, log) == 0 for _ in range(_ATTEMPTS)):
            raise LocalEnvironmentError(
                f"could not fetch the jars of {bundle.name}; Ivy's output is in {log}. Check the "
                "network (a proxy can be given to Java with JAVA_TOOL_OPTIONS), or copy "
                f"{folder.parent} from a machine that has them and point AIRFLOW_EOS_CACHE at it"
            )
        for jar in bundle.jars:
            _verify(fetched / jar.file_name, jar)
        shutil.rmtree(folder, ignore_errors=True)  # absent, or damaged
        fetched.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _verify(path: Path, jar: Jar) -> None:
    if not path.is_file():
        raise LocalEnvironmentError(
            f"Ivy succeeded but brought no {jar.file_name}: remove the folder "
            f"{cache_folder()} and try again"
        )
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != jar.sha256:
        raise LocalEnvironmentError(
            f"{jar.file_name} has SHA-256 {found}, expected {jar.sha256}: the download was changed "
            "on its way or its repository holds another file; it was not kept. Try another network"
        )


def _run_ivy(bundle: Bundle, module: Path, target: Path, log: Path) -> int:
    work = module.parent
    command = [
        java_program(),
        f"-Divy.default.ivy.user.dir={work / 'user'}",
        "-jar", str(ivy_jar()),
        "-cache", str(work / "cache"),
        "-ivy", str(module),
        "-retrieve", f"{target}/[artifact]-[revision].[ext]",
    ]  # fmt: skip
    with (
        log.open("w", encoding="utf-8") as out,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as ivy,
    ):
        try:
            _show_progress(bundle, ivy, out.write)
        except BaseException:
            ivy.kill()  # Ctrl-C must not wait for a download
            raise
    return ivy.returncode


def _show_progress(
    bundle: Bundle, ivy: subprocess.Popen[str], keep: Callable[[str], object]
) -> None:
    # Imported here: where the jars are in the cache nothing is shown.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        # Ivy first looks each jar up, then downloads it: two steps a jar.
        task = progress.add_task(f"Fetching {bundle.name}", total=2 * len(bundle.jars))
        for line in ivy.stdout or ():
            keep(line)
            if "\tfound " in line or "[SUCCESSFUL ]" in line:
                progress.advance(task)
