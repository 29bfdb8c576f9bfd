"""Fetch jars once, check them, and keep them in the user's cache folder.

The Ivy inside pyspark fetches them, with a cache and a user folder of its own: another program's
half-filled ``~/.m2`` or ``~/.ivy2`` can make Ivy fail, and our downloads must not spoil those.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.sax.saxutils import quoteattr

import platformdirs
import structlog

from airflow_eos.errors import LocalEnvironmentError

log = structlog.get_logger(__name__)

KAFKA_VERSION = "4.4.0"
_ATTEMPTS = 2  # a download cut short is common enough to try once more; Ivy keeps what it has
_MAVEN = "http://ant.apache.org/ivy/maven"
LOCKS = Path(__file__).parent / "locks"


@dataclass(frozen=True, slots=True)
class Jar:
    """One jar: its Maven coordinates, and the size and checksum that it must have.

    Attributes:
        organisation: Maven group.
        module: Maven artifact.
        revision: Maven version.
        size: bytes.
        sha256: checksum in hexadecimal.
        classifier: Maven classifier, for a jar that is not the module's main one.
        extension: Maven extension, for an archive that is not a jar.
    """

    organisation: str
    module: str
    revision: str
    size: int
    sha256: str
    classifier: str | None = None
    extension: str = "jar"

    @property
    def file_name(self) -> str:
        """Name of the file in the cache folder."""
        return f"{self.module}-{self.revision}.{self.extension}"


@dataclass(frozen=True, slots=True)
class Bundle:
    """Jars that belong together, and the name of their folder in the cache."""

    name: str
    jars: tuple[Jar, ...]

    @property
    def folder_name(self) -> str:
        """Name of the cache folder, with a hash of the checksums: a changed list gets a new one."""
        digest = hashlib.sha256("".join(jar.sha256 for jar in self.jars).encode()).hexdigest()
        return f"{self.name}-{digest[:12]}"

    def ivy_module(self) -> str:
        """Return an Ivy file that asks for exactly these jars."""
        # The explicit artifact keeps source jars out and takes those packaged as OSGi bundles in.
        wanted = "".join(
            f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.module)}"
            f' rev={quoteattr(jar.revision)} transitive="false" conf="default->master">'
            f"<artifact name={quoteattr(jar.module)} type={quoteattr(jar.extension)}"
            f" ext={quoteattr(jar.extension)}"
            f"{f' m:classifier={quoteattr(jar.classifier)}' if jar.classifier else ''}/>"
            "</dependency>"
            for jar in self.jars
        )
        return (
            f'<ivy-module version="2.0" xmlns:m="{_MAVEN}">'
            f'<info organisation="airflow-eos" module="{self.name}"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{wanted}</dependencies></ivy-module>"
        )


def read_bundle(name: str, locks: Path = LOCKS) -> Bundle:
    """Read the list ``<name>.lock`` of a folder of such lists.

    Raises:
        FileNotFoundError: there is no such list.
    """
    lines = (locks / f"{name}.lock").read_text(encoding="utf-8").splitlines()
    return Bundle(name, tuple(_parse(line) for line in lines if not line.startswith("#")))


def locked_versions(prefix: str, locks: Path = LOCKS) -> list[str]:
    """List the versions for which a list ``<prefix>-<version>.lock`` exists, oldest first."""
    names = [path.stem.removeprefix(f"{prefix}-") for path in locks.glob(f"{prefix}-*.lock")]
    return sorted(names, key=_numbers)


def nearest_patch(version: str, known: Sequence[str]) -> str | None:
    """Return the version itself, else its minor's newest known one before it, else the first after.

    None where no version of that minor is known.
    """
    wanted = _numbers(version)
    same_minor = [each for each in known if _numbers(each)[:2] == wanted[:2]]
    before = [each for each in same_minor if _numbers(each) <= wanted]
    if before:
        return max(before, key=_numbers)
    return min(same_minor, key=_numbers, default=None)


def _numbers(version: str) -> tuple[int, ...]:
    """Return major, minor and patch of a version, without a suffix as ``.dev1``."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _parse(line: str) -> Jar:
    sha256, size, coordinates = line.split()
    organisation, module, revision, *special = coordinates.split(":")
    return Jar(organisation, module, revision, int(size), sha256, *special)


MINIMUM_JAVA = 17
_LOGGING = ("slf4j-api-*.jar", "log4j-api-*.jar", "log4j-core-*.jar", "log4j-slf4j2-impl-*.jar")


@cache
def java_program() -> str:
    """Return the path of Java, of ``JAVA_HOME`` (as Spark takes it), else of PATH.

    Raises:
        LocalEnvironmentError: there is no Java, or it is older than ``MINIMUM_JAVA``.
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
    """Return the major version of the Java that Spark takes; None where none tells its version."""
    java = _java()
    if java is None:
        return None
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    return parse_java_version(answer.stderr + answer.stdout)


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")


def parse_java_version(text: str) -> int | None:
    """Return the major version in the output of ``java -version``; None where it has none.

    Java 8 and before call themselves ``1.8``.
    """
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


def pyspark_version() -> str:
    """Return the version of the installed pyspark.

    Raises:
        LocalEnvironmentError: pyspark is not installed.
    """
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise _no_pyspark() from None


def logging_jars() -> tuple[Path, ...]:
    """Return the slf4j and log4j jars that pyspark ships: the broker logs through them.

    Raises:
        LocalEnvironmentError: pyspark is not installed, or without its jars.
    """
    return tuple(pyspark_jar(pattern) for pattern in _LOGGING)


def hadoop_version() -> str:
    """Return the version of the Hadoop that pyspark ships. Errors as :func:`logging_jars`."""
    return pyspark_jar("hadoop-client-api-*.jar").stem.removeprefix("hadoop-client-api-")


def pyspark_jar(pattern: str) -> Path:
    """Return the newest jar that pyspark ships under a name. Errors as :func:`logging_jars`."""
    # Without an import of pyspark, which takes half a second and is not needed to find a folder.
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


def broker_jars() -> tuple[Path, ...]:
    """Return the jars of the Kafka broker, fetched the first time (44 MB, about half a minute).

    Raises:
        LocalEnvironmentError: no Java, no pyspark, no network, or a jar with another checksum.
    """
    return ensure(read_bundle(f"kafka-{KAFKA_VERSION}"))


def s3a_jars() -> tuple[Path, ...]:
    """Return the jars of ``s3a://`` for pyspark's own Hadoop, fetched the first time (690 MB).

    Nearly all of that is the AWS SDK, which is published as one jar. Errors as :func:`broker_jars`,
    and where there is no list for that Hadoop.
    """
    return ensure(of_pyspark_hadoop("hadoop-aws"))


def of_pyspark_hadoop(prefix: str, locks: Path = LOCKS) -> Bundle:
    """Read the list ``<prefix>-<version>.lock`` for the Hadoop that pyspark ships.

    Raises:
        LocalEnvironmentError: there is no list for that version.
    """
    version = hadoop_version()
    known = locked_versions(prefix, locks)
    if version not in known:
        raise LocalEnvironmentError(
            f"pyspark {pyspark_version()} brings Hadoop {version}; the jars of {prefix} are listed "
            f"for {', '.join(known)}: install a pyspark that brings one of these"
        )
    return read_bundle(f"{prefix}-{version}", locks)


def spark_jars() -> tuple[Path, ...]:
    """Return the jars of Spark's Kafka connector for the installed pyspark, fetched the first time.

    Give them to Spark as ``spark.jars``, joined with commas. Spark's patch releases come before
    their connectors reach every repository, and before our lists: a patch that has no list takes
    the nearest list of its minor version, which a warning names.

    Raises:
        LocalEnvironmentError: no Java, no pyspark or one of a minor version without a list, no
            network, or a jar with another checksum.
    """
    return _that_fit_pyspark("spark", "spark-sql-kafka-0-10_2.13")


def avro_jars() -> tuple[Path, ...]:
    """Return the jar of Spark's ``from_avro``. Choice and errors as for :func:`spark_jars`."""
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
    """Return the folder of downloads: ``AIRFLOW_EOS_CACHE``, else the user's cache folder."""
    override = os.environ.get("AIRFLOW_EOS_CACHE")
    return Path(override) if override else platformdirs.user_cache_path("airflow-eos")


def ensure(bundle: Bundle) -> tuple[Path, ...]:
    """Return the bundle's jars, fetched the first time and checked against their checksums."""
    root = cache_folder() / "jars"
    folder = root / bundle.folder_name
    if not _complete(folder, bundle):
        root.mkdir(parents=True, exist_ok=True)
        with (root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # closing the file releases the lock
            if not _complete(folder, bundle):  # another process may have fetched the jars meanwhile
                _fetch(bundle, folder)
    return tuple(folder / jar.file_name for jar in bundle.jars)


def _complete(folder: Path, bundle: Bundle) -> bool:
    # Sizes only: a folder is moved into place after every checksum has been compared.
    paths = {folder / jar.file_name: jar.size for jar in bundle.jars}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())


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
        "-jar", str(pyspark_jar("ivy-*.jar")),
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
    # Imported here: no progress is shown where the jars are in the cache.
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
