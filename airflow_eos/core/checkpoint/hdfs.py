"""The backend of a folder on HDFS: ``hdfs://`` and its options for hdfs-native, without a JVM.

The options are Hadoop's own settings by their own names, which have dots, and a few of the client:

==================== ==============================================================
hadoop_conf_dir      folder of core-site.xml and hdfs-site.xml; else HADOOP_CONF_DIR
kerberos_principal   name to log in with, together with
kerberos_keytab      its keytab file; else the ticket cache of the machine
kerberos_cache       another ticket cache
timeout              of each request, such as ``60s``
==================== ==============================================================
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from obstore.exceptions import AlreadyExistsError

from airflow_eos.core.checkpoint.backend import Content, require_readable
from airflow_eos.core.checkpoint.locations import HDFS, located, printable
from airflow_eos.errors import ConfigurationError, StoreError

T = TypeVar("T")

_READS = 3
"""Tries of a read: a file that is replaced meanwhile loses its blocks; a new try gets the new."""
_PIECE_BYTES = 8 << 20
_NO_RIGHTS = ("AccessControlException", "SaslException", "SASLError", "GSSAPIError")


class HdfsFiles:
    """The backend of a checkpoint store in the folder ``root`` of one HDFS.

    Args:
        connect: makes a client; called once in each process.
        root: absolute path of the checkpoint, which may not exist yet.
        timeout_s: seconds, for each request.
    """

    def __init__(self, connect: Callable[[], Any], root: str, timeout_s: float) -> None:
        self._connect = connect
        self.root = root
        self._timeout_s = timeout_s
        self._of_process = os.getpid()
        self._made = connect()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the client out: a process that gets this, as Spark's planner, makes its own."""
        return self.__dict__ | {"_of_process": 0, "_made": None}

    def __repr__(self) -> str:
        return f"HdfsFiles(root={self.root!r})"

    def put(
        self,
        path: str,
        file: bytes,
        *,
        mode: Literal["create", "overwrite"],
        durable: bool = True,
    ) -> object:
        """Write the whole object or nothing; on return it survives a power cut, always.

        Raises:
            AlreadyExistsError: ``mode`` is create and the object is there.
            OSError: HDFS refused or did not answer.
        """
        del durable
        self._ask(lambda client: self._put(client, path, file, mode == "overwrite"))
        return None

    def _put(self, client: Any, path: str, file: bytes, overwrite: bool) -> None:  # noqa: FBT001
        target = f"{self.root}/{path}"
        # Not the target's name with a suffix: that name may be as long as a name can be.
        staged = f"{target.rpartition('/')[0]}/.{uuid.uuid4().hex}.tmp"
        try:
            with client.create(staged) as out:  # makes the folders too
                out.write(file)
                _sync(out)
            client.rename(staged, target, overwrite)
        except BaseException as error:
            with contextlib.suppress(OSError, RuntimeError):
                client.delete(staged)
            if isinstance(error, FileNotFoundError):  # of the staged file, not of the target
                raise OSError(f"{path}: what was staged is gone: {_first(error)}") from error
            if isinstance(error, FileExistsError):
                raise AlreadyExistsError(f"{path} already exists") from error
            raise

    def get(self, path: str) -> Content:
        """Read the object; FileNotFoundError when absent, IsADirectoryError for a folder."""
        for left in reversed(range(_READS)):
            try:
                return self._ask(lambda client: _content(client, f"{self.root}/{path}"))
            except (FileNotFoundError, IsADirectoryError, PermissionError, TimeoutError):
                raise
            except OSError:
                if not left:
                    raise
        raise AssertionError

    def head(self, path: str) -> dict[str, Any]:
        """Return size and time of the object; FileNotFoundError when absent. Errors as ``get``."""
        found = self._ask(lambda client: client.get_file_info(f"{self.root}/{path}"))
        if found.isdir:
            raise IsADirectoryError(path)
        return _meta(path, found)

    def list_with_delimiter(self, prefix: str) -> dict[str, Any]:
        """List objects and folders directly under ``prefix``; FileNotFoundError when absent."""
        folder = f"{self.root}/{prefix}"
        found = self._ask(lambda client: list(client.list_status(folder)))
        objects: list[dict[str, Any]] = []
        folders: list[str] = []
        for each in found:
            name = each.path.rpartition("/")[2]
            if each.isdir:
                folders.append(f"{prefix}/{name}")
            elif each.path == folder:  # a file lists itself
                raise NotADirectoryError(folder)
            else:
                objects.append(_meta(f"{prefix}/{name}", each))
        return {"common_prefixes": folders, "objects": objects}

    def get_range(self, path: str, first: int, until: int) -> bytes:
        """Return the bytes from ``first`` up to ``until``, excluded; errors as ``get``."""
        at = f"{self.root}/{path}"
        return self._ask(lambda client: bytes(client.read(at).read_range(first, until - first)))

    def list_below(self, prefix: str) -> list[dict[str, Any]]:
        """List the file, or all files below the folder, however deep."""
        at = f"{self.root}/{prefix}"
        try:
            found = self._ask(lambda client: list(client.list_status(at, recursive=True)))
        except FileNotFoundError:
            return []
        root = f"{self.root}/"
        return [_meta(each.path.removeprefix(root), each) for each in found if not each.isdir]

    def upload(self, path: str, file: BinaryIO) -> None:
        """Write a file of this machine, durable on return; each piece is a request of its own."""
        at = f"{self.root}/{path}"
        try:
            out = self._ask(lambda client: client.create(at))  # makes the folders too
            while piece := file.read(_PIECE_BYTES):
                self._ask(partial(_write, out, piece))
            self._ask(lambda _: _sync(out))
            self._ask(lambda _: out.close())
        except BaseException:
            with contextlib.suppress(OSError):
                self._ask(lambda client: client.delete(at))
            raise

    def publish(self, source: str, target: str) -> None:
        """Rename the file; FileNotFoundError: it is gone, or renamed, FileExistsError: in the way.

        The name node lets one of several do it.
        """

        def rename(client: Any) -> None:
            client.mkdirs(f"{self.root}/{target}".rpartition("/")[0], create_parent=True)
            client.rename(f"{self.root}/{source}", f"{self.root}/{target}", overwrite=False)

        self._ask(rename)

    def delete(self, paths: str) -> None:
        """Delete one object; FileNotFoundError when absent."""
        if not self._ask(lambda client: client.delete(f"{self.root}/{paths}")):
            raise FileNotFoundError(paths)

    def exists(self) -> bool:
        """Whether the folder ``root`` exists already."""
        try:
            self._ask(lambda client: client.get_file_info(self.root))
        except FileNotFoundError:
            return False
        return True

    def remove_folder(self, prefix: str) -> None:
        """Remove the folder if it is empty; object stores have no folders, HDFS does."""
        folder = f"{self.root}/{prefix}".rstrip("/")
        with contextlib.suppress(OSError):
            self._ask(lambda client: client.delete(folder))

    def sync(self, *paths: str) -> None:
        """Do nothing: whoever wrote an object of ours synced it before it got its name."""

    def _client(self) -> Any:
        """Return this process's client: threads of one made before a fork do not exist here."""
        if self._of_process != os.getpid():
            self._made, self._of_process = self._connect(), os.getpid()
        return self._made

    def _ask(self, request: Callable[[Any], T]) -> T:
        """Return the answer to ``request``; raise OSError for every failure and for silence."""
        client = self._client()
        answers: list[T] = []
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                answers.append(request(client))
            except BaseException as error:  # noqa: BLE001 - a panic of its Rust code too
                failures.append(error)

        # A daemon: where no answer ever comes, the process must be able to end.
        asking = threading.Thread(target=ask, name="airflow-eos-hdfs", daemon=True)
        asking.start()
        asking.join(self._timeout_s)
        if answers:
            return answers[0]
        if failures:
            raise _as_os_error(failures[0])
        raise TimeoutError(f"HDFS did not answer within {self._timeout_s:g} s")


def _write(out: Any, piece: bytes, _client: Any) -> None:
    out.write(piece)


def _sync(out: Any) -> None:
    with contextlib.suppress(NotImplementedError):  # erasure coded: synced when closed
        out.hsync()


def _as_os_error(error: BaseException) -> BaseException:
    """Translate an error of the client into an error of the operating system that says the same."""
    if isinstance(error, FileNotFoundError) and "not a file" in str(error):
        return IsADirectoryError(_first(error))
    if isinstance(error, OSError | AlreadyExistsError):
        return error
    said = _first(error)
    if any(name in said for name in _NO_RIGHTS):
        return PermissionError(said)
    return OSError(said)


def _first(error: BaseException) -> str:
    """Return the error's first line: HDFS sends the trace of the name node behind it."""
    return str(error).replace("\\n", "\n").partition("\n")[0]


def _content(client: Any, path: str) -> Content:
    reader = client.read(path)
    require_readable(path, len(reader))
    return Content(reader.read())


def _meta(path: str, found: Any) -> dict[str, Any]:
    modified = datetime.fromtimestamp(found.modification_time / 1000, UTC)
    return {"path": path, "size": found.length, "last_modified": modified}


_CONF_DIR = "hadoop_conf_dir"
_KERBEROS = ("kerberos_principal", "kerberos_keytab", "kerberos_cache")
_TIMEOUT = "timeout"
_OWN = (_CONF_DIR, *_KERBEROS, _TIMEOUT)
_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}
_DEFAULT_TIMEOUT_S = 60.0
_DEFAULT_FS = "fs.defaultFS"
_PROVIDER = "dfs.client.failover.proxy.provider"
_ACTIVE_ALONE = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"


def open_hdfs(location: str, storage_options: Mapping[str, str] | None) -> HdfsFiles:
    """Open the folder of the URL; nothing is contacted but, with a keytab, the Kerberos server.

    Raises:
        ConfigurationError: the library is missing.
        StoreError: a URL, a name service or options that cannot work.
    """
    if find_spec("hdfs_native") is None:
        raise ConfigurationError(
            f"{printable(location)}: what is on HDFS needs the package hdfs-native on the "
            "driver, for output files on every executor, and wherever Airflow or recovery reads "
            "it: pip install "
            "'airflow-provider-eos[hdfs]'."
        )
    options = dict(storage_options or {})
    settings = {name: options.pop(name) for name in list(options) if "." in name}
    _refuse_unknown(location, options)
    timeout_s = _seconds(options.pop(_TIMEOUT, None))
    found = located(location)
    settings |= _from_the_active(found.authority, settings, options.get(_CONF_DIR))

    def connect() -> Any:
        from hdfs_native import Client

        return Client(
            f"hdfs://{found.authority}" if found.authority else None,
            settings,
            options.get(_CONF_DIR),
            **{name: options[name] for name in _KERBEROS if name in options},
        )

    try:
        return HdfsFiles(connect, found.path.rstrip("/"), timeout_s)
    except (OSError, RuntimeError, ValueError) as error:
        raise StoreError(
            f"{printable(location)} cannot be opened: {str(error).partition(chr(10))[0]}. Expected "
            "a name node with its port, or a name service that hdfs-site.xml knows: set "
            f"HADOOP_CONF_DIR, or give {_CONF_DIR} or the settings dfs.ha.namenodes.… and "
            "dfs.namenode.rpc-address.… as storage options."
        ) from error


def modules_for(location: str) -> tuple[str, ...]:
    """Return the modules that a task needs for a folder there, beside those of every install."""
    return ("hdfs_native",) if located(location).scheme == HDFS else ()


def hadoop_settings(location: str, storage_options: Mapping[str, str] | None) -> dict[str, str]:
    """Return the settings for another library's client of the same HDFS.

    Raises:
        ConfigurationError: an option that such a client takes from the environment alone.
    """
    options = dict(storage_options or {})
    if own := sorted({_CONF_DIR, *_KERBEROS} & options.keys()):
        raise ConfigurationError(
            f"{printable(location)}: {', '.join(own)} reach our own client of HDFS alone. Set "
            "HADOOP_CONF_DIR for driver, executors and recovery, and log in there by kinit."
        )
    settings = {name: value for name, value in options.items() if "." in name}
    return settings | _from_the_active(located(location).authority, settings, None)


def _from_the_active(
    authority: str, settings: Mapping[str, str], conf_dir: str | None
) -> dict[str, str]:
    """Return the setting by which the client asks only a name service's active name node.

    An observer is behind, and a file that it has not heard of would pass for absent (HDFS-12943).
    """
    if not authority:
        authority = urlsplit(settings.get(_DEFAULT_FS) or _noted(conf_dir) or "").netloc
    if not authority or ":" in authority:  # one name node, by its address
        return {}
    return {f"{_PROVIDER}.{authority}": _ACTIVE_ALONE}


def _noted(conf_dir: str | None) -> str | None:
    """Return ``fs.defaultFS`` of core-site.xml, looked for where hdfs-native looks."""
    home = os.environ.get("HADOOP_HOME")
    found = conf_dir or os.environ.get("HADOOP_CONF_DIR") or (home and f"{home}/etc/hadoop")
    site = Path(found or "") / "core-site.xml"
    if not found or not site.is_file():
        return None
    try:
        properties = ET.parse(site).iter("property")  # noqa: S314 - who runs us wrote it
        named = {each.findtext("name"): each.findtext("value") for each in properties}
    except ET.ParseError as error:
        raise StoreError(f"{site} is no XML ({error}): expected Hadoop's settings.") from error
    return named.get(_DEFAULT_FS)


def _refuse_unknown(location: str, options: Mapping[str, str]) -> None:
    unknown = sorted(set(options) - set(_OWN))
    if unknown:
        named = []
        for key in unknown:
            nearest = get_close_matches(key, _OWN, n=1)
            named.append(f"{key!r}" + (f" (did you mean {nearest[0]!r}?)" if nearest else ""))
        raise StoreError(
            f"{printable(location)} cannot be opened: unknown storage options {', '.join(named)}. "
            f"Expected {', '.join(_OWN)}, or Hadoop's own settings by their names (dfs.…)."
        )
    folder = options.get(_CONF_DIR)
    if folder is not None and not Path(folder).is_dir():
        raise StoreError(
            f"{_CONF_DIR} {folder!r} is no folder here: expected one with core-site.xml and "
            "hdfs-site.xml in it."
        )


def _seconds(given: str | None) -> float:
    if given is None:
        return _DEFAULT_TIMEOUT_S
    found = _SECONDS.fullmatch(given.strip())
    if found is None:
        raise StoreError(f"The storage option {_TIMEOUT} is {given!r}: expected such as '60s'.")
    return float(found[1]) * _UNIT_S[found[2]]
