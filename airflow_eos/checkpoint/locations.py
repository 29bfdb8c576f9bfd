"""Where a checkpoint may live: a location as a user writes it, read as Hadoop's ``Path`` does.

Spark and we write into one folder, so there is one reading of its name, and it is Hadoop's: nothing
is unescaped (``my%20data`` is a folder of that very name), slashes are collapsed, ``.`` and ``..``
are resolved by the text. What Hadoop or its file systems would refuse, or read as something else
than the user can have meant, is refused here, before anything is written.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import obstore.exceptions as failures
import structlog
from obstore.store import from_url

from airflow_eos.checkpoint.guarded import Guarded, panics_as_errors
from airflow_eos.checkpoint.options import StorageOptions, split, unknown_options
from airflow_eos.errors import Remedy, StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.get_logger(__name__)

LOCAL, HDFS = "file", "hdfs"
_REMOTE = frozenset({"s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss"})
_USER_IS_THE_CONTAINER = frozenset({"abfs", "abfss"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Location:
    """A folder. ``authority`` is a bucket or a name node, empty on a disk; ``path`` is absolute."""

    scheme: str
    authority: str
    path: str

    @property
    def local(self) -> Path | None:
        """The folder on this machine; None where it is on no disk."""
        return Path(self.path) if self.scheme == LOCAL else None

    @property
    def uri(self) -> str:
        """By the rules of URIs, with escapes: for who reads it as one, as obstore does."""
        return f"{self.scheme}://{self.authority}{quote(self.path)}"

    @property
    def for_spark(self) -> str:
        """As Hadoop's ``Path`` takes it."""
        return f"{self.scheme}://{self.authority}{self.path}"

    def __str__(self) -> str:
        """One text for one folder: what people see, and what claims of it say."""
        return self.path if self.scheme == LOCAL else self.for_spark.rstrip("/")


def located(location: str) -> Location:
    """Read a path or URL as Hadoop's ``Path`` does; a relative path is below the working folder.

    Raises:
        StoreError: Hadoop would refuse it, or read it as what nobody can have meant.
    """
    _require_text(location)
    colon, slash = location.find(":"), location.find("/")
    if colon != -1 and (slash == -1 or colon < slash):
        scheme, rest = location[:colon].lower(), location[colon + 1 :]
        if _SCHEME.fullmatch(scheme) is None or not rest.startswith("/"):
            raise _no_location(
                location,
                "is a relative path for Python and a URL with a relative path for Hadoop",
                "write the absolute path, or put ./ before it",
            )
    else:
        scheme, rest = "", location
    authority = ""
    if rest.startswith("//"):
        authority, rest = _authority(rest)
    if not scheme and authority:
        raise _no_location(
            location,
            f"begins with two slashes, by which Hadoop takes {authority!r} for a host",
            "write one slash",
        )
    if not scheme and not rest.startswith("/"):
        rest = f"{Path.cwd()}/{rest}"
    found = Location(scheme or LOCAL, authority, _normalized(location, rest))
    if found.scheme == LOCAL:
        if authority:
            raise _no_location(
                location,
                f"names the host {authority!r}, which Hadoop refuses",
                "write file:///absolute/path",
            )
    elif found.scheme in _REMOTE or found.scheme == HDFS:
        _require_remote(location, found)
    return found


def as_local_path(location: str) -> Path | None:
    """The absolute path of a location on a disk; None for every other one."""
    return located(location).local


def _require_text(location: str) -> None:
    if not location or "\0" in location:
        raise _no_location(location, "is no path", "write a path or a URL")
    try:
        location.encode()
    except UnicodeEncodeError as error:
        raise _no_location(
            location, "is no UTF-8 text, which a JVM cannot name", "choose a folder named in UTF-8"
        ) from error


def _authority(rest: str) -> tuple[str, str]:
    end = rest.find("/", 2)
    return (rest[2:], "/") if end == -1 else (rest[2:end], rest[end:])


def _normalized(location: str, path: str) -> str:
    depth = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else part not in {"", "."}
        if depth < 0:
            raise _no_location(location, "leaves its root by '..'", "write the absolute path")
    return posixpath.normpath("/" + path.lstrip("/"))


def _require_remote(location: str, found: Location) -> None:
    if "?" in location or "#" in location:
        raise _no_location(
            location,
            "has '?' or '#' in it, which Hadoop takes for a part of the folder's name",
            "leave the query or fragment away, and give credentials as storage options",
        )
    if found.scheme == HDFS:
        return
    if not found.authority:
        raise _no_location(location, "names no bucket", f"write {found.scheme}://bucket/folder")
    if "@" in found.authority and found.scheme not in _USER_IS_THE_CONTAINER:
        raise _no_location(
            location,
            "holds a login, which Hadoop refuses",
            "take it out of the location, and give it as storage options",
        )


def _no_location(location: str, why: str, change: str) -> StoreError:
    return StoreError(
        f"{printable(location)!r} is not a checkpoint location: it {why}. Expected a path or URL "
        "that Spark reads as we do. Nothing was written.",
        Remedy(change=change, start=True),
    )


def open_remote(location: str, storage_options: Mapping[str, str] | None) -> Any:
    """An obstore store for the URL; nothing is contacted yet.

    Raises:
        StoreError: a scheme that has no create-if-absent from Python, or options that obstore
            does not know or cannot use.
    """
    found = located(location)
    scheme, uri = found.scheme, found.uri
    if scheme not in _REMOTE:
        raise StoreError(
            f"{printable(location)}: a checkpoint on {scheme}:// cannot be used from here. "
            "Expected a store that can create an object only if it is absent: a local path or "
            "file://, s3:// (s3a://), gs://, az:// or abfss://; hdfs:// for a checkpoint, not for "
            "output files. A mounted HDFS has no hard links: use its hdfs:// location."
        )
    _refuse_after_fork(printable(location))
    options = split(scheme, storage_options or {})
    if options.client.get("allow_invalid_certificates", "false").lower() != "false":
        log.warning(
            "tls_not_verified",
            setting="allow_invalid_certificates",
            checkpoint=printable(location),
            hint="anybody on the way can read and change it; give root_certificate instead",
        )
    try:
        return Guarded(_opened(uri, options))
    except failures.UnknownConfigurationKeyError as error:
        unknown = [key for key in options.config if not _is_known(uri, key)]
        raise StoreError(
            f"{printable(location)} cannot be opened: unknown storage options "
            f"{unknown_options(scheme, unknown)}. Expected configuration keys or client options "
            "of obstore."
        ) from error
    except (failures.BaseError, ValueError, TypeError, OSError) as error:
        said = brief(error)
        for value in (storage_options or {}).values():
            said = said.replace(f'"{value}"', '"***"')  # a secret, maybe, under a wrong name
        raise StoreError(
            f"{printable(location)} cannot be opened: {said}. Expected a URL and "
            f"storage options that obstore knows; the options given: "
            f"{', '.join(sorted(storage_options or {})) or 'none'}."
        ) from error


def _opened(location: str, options: StorageOptions) -> Any:
    with panics_as_errors():
        return from_url(location, config=options.config, client_options=options.client)  # type: ignore[call-overload]


def _is_known(location: str, key: str) -> bool:
    """Whether obstore knows the key at all, whatever it thinks of a value."""
    try:
        _opened(location, StorageOptions({key: ""}, {}))
    except failures.UnknownConfigurationKeyError:
        return False
    except failures.BaseError:
        return True
    return True


_opened_by: list[int] = []


def _refuse_after_fork(location: str) -> None:
    """Threads of obstore do not exist in a forked child: it would wait for them for ever."""
    if _opened_by and os.getpid() not in _opened_by:
        raise StoreError(
            f"{location}: this process was forked from one that had already used an object store, "
            "and would hang. Open checkpoints in the child only, or start it by 'spawn'."
        )
    _opened_by[:] = [os.getpid()]


def printable(location: str) -> str:
    """The location without a password or a signature in it: it ends up in logs and in plans."""
    without_query = location.partition("?")[0].partition("#")[0]
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", without_query)


def brief(error: Exception | None) -> str:
    """The first line of a store's error, without the signed part of a URL."""
    first = str(error).strip().partition("\n")[0] if error is not None else "no answer"
    unsigned = re.sub(r"[?][^\s)]+", "?***", first)
    return f"{type(error).__name__}: {unsigned}"
