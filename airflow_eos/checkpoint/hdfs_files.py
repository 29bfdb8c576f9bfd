"""A checkpoint on HDFS: one winner in every create, and never half an object.

HDFS's own ``create(overwrite=false)`` has one winner too, but the name is there before the content:
a reader would find an empty decision. So a write goes to a hidden file, is synced to the disks of
the data nodes, and gets its name by a rename, which the name node does in one step: without
overwriting (create), or with it (overwrite).

Seen with hdfs-native 0.14.7, and answered here: a client that was made before a fork hangs in the
child; a request to a name node that stands still has no end; a request whose connection is lost is
sent again, so that a rename that was done answers "source not found". That last one is an error
here like any other: who creates reads back what stands there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from obstore.exceptions import AlreadyExistsError

from airflow_eos.checkpoint.backend import Content

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_READS = 3
"""A file that is replaced while it is read loses its blocks: the next read gets the new one."""
_NO_RIGHTS = ("AccessControlException", "SaslException", "SASLError", "GSSAPIError")


class HdfsFiles:
    """What a store asks of its backend, on the folder ``root`` of one HDFS.

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
        """Without the client: a process that is sent it, as Spark's planner is, makes its own."""
        return self.__dict__ | {"_of_process": 0, "_made": None}

    def __repr__(self) -> str:
        return f"HdfsFiles(root={self.root!r})"

    def put(self, path: str, file: bytes, *, mode: Literal["create", "overwrite"]) -> object:
        """Write the whole object or nothing; on return it survives a power cut.

        Raises:
            AlreadyExistsError: ``mode`` is create and the object is there.
            OSError: HDFS refused or did not answer.
        """
        self._ask(lambda client: self._put(client, path, file, mode == "overwrite"))
        return None

    def _put(self, client: Any, path: str, file: bytes, overwrite: bool) -> None:  # noqa: FBT001
        target = f"{self.root}/{path}"
        # Not the target's name with more to it: that may be as long as a name can be.
        staged = f"{target.rpartition('/')[0]}/.{uuid.uuid4().hex}.tmp"
        try:
            with client.create(staged) as out:  # makes the folders too
                out.write(file)
                with contextlib.suppress(NotImplementedError):  # erasure coded: synced when closed
                    out.hsync()
            client.rename(staged, target, overwrite)
        except BaseException as error:
            with contextlib.suppress(OSError, RuntimeError):
                client.delete(staged)
            if isinstance(error, FileNotFoundError):  # the staged one: nobody may read "absent"
                raise OSError(f"{path}: what was staged is gone: {_first(error)}") from error
            if isinstance(error, FileExistsError):
                raise AlreadyExistsError(f"{path} already exists") from error
            raise

    def get(self, path: str) -> Content:
        """Read the object; FileNotFoundError when absent or a folder."""
        for left in reversed(range(_READS)):
            try:
                return self._ask(lambda client: Content(client.read(f"{self.root}/{path}").read()))
            except (FileNotFoundError, PermissionError, TimeoutError):
                raise
            except OSError:
                if not left:
                    raise
        raise AssertionError

    def head(self, path: str) -> dict[str, Any]:
        """Size and time of the object; FileNotFoundError when absent or a folder."""
        found = self._ask(lambda client: client.get_file_info(f"{self.root}/{path}"))
        if found.isdir:
            raise FileNotFoundError(path)
        return _meta(path, found)

    def list_with_delimiter(self, prefix: str) -> dict[str, Any]:
        """Objects and folders directly under ``prefix``; FileNotFoundError when there is none."""
        folder = f"{self.root}/{prefix}"
        found = self._ask(lambda client: list(client.list_status(folder)))
        objects: list[dict[str, Any]] = []
        folders: list[str] = []
        for each in found:
            name = each.path.rpartition("/")[2]
            if each.isdir:
                folders.append(f"{prefix}/{name}")
            elif each.path != folder:  # a file lists itself
                objects.append(_meta(f"{prefix}/{name}", each))
        return {"common_prefixes": folders, "objects": objects}

    def delete(self, paths: str) -> None:
        """Delete one object; FileNotFoundError when absent."""
        if not self._ask(lambda client: client.delete(f"{self.root}/{paths}")):
            raise FileNotFoundError(paths)

    def exists(self) -> bool:
        """Whether there is a folder already."""
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
        """Nothing: whoever wrote an object of ours synced it before it got its name."""

    def _client(self) -> Any:
        """Of this process: the threads of a client that was made before a fork are not here."""
        if self._of_process != os.getpid():
            self._made, self._of_process = self._connect(), os.getpid()
        return self._made

    def _ask(self, request: Callable[[Any], T]) -> T:
        """The answer; OSError for whatever is none."""
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


def _as_os_error(error: BaseException) -> BaseException:
    """What the client raises, as an error of the operating system that says the same."""
    if isinstance(error, OSError | AlreadyExistsError):
        return error
    said = _first(error)
    if any(name in said for name in _NO_RIGHTS):
        return PermissionError(said)
    return OSError(said)


def _first(error: BaseException) -> str:
    """The first line: HDFS sends the trace of the name node behind it."""
    return str(error).replace("\\n", "\n").partition("\n")[0]


def _meta(path: str, found: Any) -> dict[str, Any]:
    modified = datetime.fromtimestamp(found.modification_time / 1000, UTC)
    return {"path": path, "size": found.length, "last_modified": modified}
