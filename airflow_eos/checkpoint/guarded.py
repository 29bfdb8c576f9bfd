"""An object store whose panics are errors.

A panic of obstore's Rust code arrives as ``PanicException``, a BaseException that no handler of
errors sees: it would end a driver past everything that is done for a store that fails.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import obstore
from obstore.exceptions import GenericError

from airflow_eos.checkpoint.backend import Content

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Raise obstore's own GenericError for a panic."""
    try:
        yield
    except BaseException as error:
        # pyo3 makes the class when it is first needed; there is nothing to import.
        if type(error).__name__ != "PanicException":
            raise
        raise GenericError(f"obstore panicked: {error}") from error


class Guarded:
    """A backend as it is, but for its panics."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __repr__(self) -> str:
        return repr(self._backend)

    def put(self, path: str, file: bytes, *, mode: Literal["create", "overwrite"]) -> object:
        """See :class:`Backend`."""
        with panics_as_errors():
            return self._backend.put(path, file, mode=mode)

    def get(self, path: str) -> Content:
        """See :class:`Backend`; the object is read to its end here, where a panic is seen."""
        with panics_as_errors():
            return Content(self._backend.get(path).bytes())

    def head(self, path: str) -> Any:
        """See :class:`Backend`."""
        with panics_as_errors():
            return self._backend.head(path)

    def list_with_delimiter(self, prefix: str | None) -> Any:
        """See :class:`Backend`."""
        with panics_as_errors():
            return self._backend.list_with_delimiter(prefix)

    def delete(self, paths: str) -> None:
        """See :class:`Backend`."""
        with panics_as_errors():
            self._backend.delete(paths)

    def upload(self, path: str, file: BinaryIO) -> None:
        """Send a file, in parts where it is large; the object is there whole or not at all."""
        with panics_as_errors():
            obstore.put(self._backend, path, file, mode="overwrite")

    def copy_if_absent(self, source: str, target: str) -> None:
        """Copy on the server; AlreadyExistsError, FileNotFoundError (of the source)."""
        with panics_as_errors():
            obstore.copy(self._backend, source, target, overwrite=False)

    def list_below(self, prefix: str) -> list[Any]:
        """All objects below a folder, however deep."""
        with panics_as_errors():
            return [meta for part in obstore.list(self._backend, prefix) for meta in part]
