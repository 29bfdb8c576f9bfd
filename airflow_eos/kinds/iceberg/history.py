"""Tables without their former snapshots, so that a batch costs the same whatever the table's age.

pyiceberg parses every snapshot at each look, and copies all of them several times in each commit.
A REST catalog is asked for those alone that branches and tags name. Elsewhere pyiceberg reads and
writes the metadata file itself, through a FileIO: this one leaves the others out, and puts them
back, byte by byte, into the file that is made of it.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyiceberg.io import FileIO, InputFile, OutputFile, load_file_io
from typing_extensions import override

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import InputStream, OutputStream
    from requests import Response

_FILE_IO = "py-io-impl"
_LOADING = "snapshot-loading-mode"
_OF = "eos-without-history-of"
"""In the properties of metadata without history: the file that has it. It is never written."""
_KEPT, _PARTS = 4, 64
_NONE = msgspec.Raw(b"[]")
_Fields = dict[str, msgspec.Raw]


class _Snapshot(msgspec.Struct, frozen=True, rename="kebab"):
    snapshot_id: int


class _Version(msgspec.Struct, frozen=True, rename="kebab"):
    metadata_file: str


class _Reply(msgspec.Struct, rename="kebab"):
    metadata: _Fields
    metadata_location: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    config: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    storage_credentials: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def leave_out(catalog: Catalog) -> None:
    """Let the tables of an open catalog come without history; what the user chose of it stands."""
    catalog.properties.setdefault(_LOADING, "refs")
    catalog.properties.setdefault(_FILE_IO, f"{SlimFileIO.__module__}.{SlimFileIO.__qualname__}")
    session = getattr(catalog, "_session", None)  # of REST, which the library shows to nobody
    if session is not None:  # all history comes with the reply to each commit
        session.hooks["response"].append(_slim_reply)


def _slim_reply(response: Response, **_: Any) -> Response:
    """Return a reply without history; it is read at once, not in the pieces that it comes in."""
    from requests import Response

    if not response.ok:
        return response
    content = response.raw.read(decode_content=True)
    found = Response()
    for name in ("status_code", "headers", "url", "encoding", "reason", "request", "history"):
        setattr(found, name, getattr(response, name))
    if b'"snapshots"' in content:
        with contextlib.suppress(msgspec.ValidationError):  # of no table
            reply = msgspec.json.decode(content, type=_Reply)
            _leave_out(reply.metadata)
            content = msgspec.json.encode(reply)
    found.raw = io.BytesIO(content)
    return found


def slim(metadata: bytes, location: str = "") -> bytes:
    """Return a table's metadata without its history.

    Args:
        metadata: JSON, as the format has it.
        location: the file of it, which is written anew from the result; empty: it is only read.
    """
    fields = msgspec.json.decode(metadata, type=_Fields)
    if "snapshots" not in fields:
        return metadata
    _leave_out(fields)
    if location:
        fields["properties"] = _raw(_properties(fields) | {_OF: location})
    return msgspec.json.encode(fields)


def _leave_out(fields: _Fields) -> None:
    fields["snapshots"] = _raw(_those(_named(fields), _each(fields.get("snapshots", _NONE))))
    fields["snapshot-log"] = _raw([])


class MetadataFile(NamedTuple):
    """A file of metadata.

    Attributes:
        size: in bytes.
        slim: what is in it, without history.
        history: what it lists of snapshots, by the field's name: JSON without brackets, in parts.
    """

    size: int
    slim: bytes
    history: dict[str, tuple[bytes, ...]]


def whole(
    metadata: bytes, former: Callable[[str], MetadataFile]
) -> tuple[list[bytes], dict[str, tuple[bytes, ...]]]:
    """Return metadata that was made of what :func:`slim` returned, with the history of before.

    In parts, of which those of before are neither looked into nor copied.

    Args:
        metadata: of the next version.
        former: returns what is in a file of metadata.

    Raises:
        ValueError: it was not made of that file: nothing may be written.
    """
    fields = msgspec.json.decode(metadata, type=_Fields)
    properties = _properties(fields)
    location = properties.pop(_OF, None)
    if location is None:
        return [metadata], _history(fields)
    made_of = msgspec.json.decode(fields.get("metadata-log", b"[]"), type=list[_Version])
    if not made_of or made_of[-1].metadata_file != location:
        raise ValueError(f"the metadata of a table was not made of {location}: nothing is written")
    stored = former(location)
    seen = msgspec.json.decode(stored.slim, type=_Fields).get("snapshots", _NONE)
    found = _each(fields.pop("snapshots", _NONE))
    known = {_id(each) for each in _each(seen)}
    new = [bytes(each) for each in found if _id(each) not in known]
    if len(found) - len(new) < len(known):
        raise ValueError(f"snapshots of {location} are to go: nothing is written")
    log = [bytes(each) for each in _each(fields.pop("snapshot-log", _NONE))]
    history = {
        name: _joined((*stored.history[name], *more))
        for name, more in (("snapshots", new), ("snapshot-log", log))
    }
    fields["properties"] = _raw(properties)
    told = [msgspec.json.encode(fields).removesuffix(b"}")]
    for name, parts in history.items():
        told.append(f',"{name}":['.encode())
        told += [each for part in parts for each in (part, b",")][:-1]
        told.append(b"]")
    return [*told, b"}"], history


def _joined(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return parts if len(parts) < _PARTS else (b",".join(parts),)


def _history(fields: _Fields) -> dict[str, tuple[bytes, ...]]:
    found: dict[str, tuple[bytes, ...]] = {}
    for name in ("snapshots", "snapshot-log"):
        inner = bytes(memoryview(fields.get(name, _NONE))[1:-1])
        found[name] = (inner,) if inner[:99].strip() else ()
    return found


def _named(fields: _Fields) -> set[int]:
    refs = msgspec.json.decode(fields.get("refs", b"{}"), type=dict[str, _Snapshot])
    current = msgspec.json.decode(fields.get("current-snapshot-id", b"null"), type=int | None)
    return {each.snapshot_id for each in refs.values()} | ({current} if current else set())


def _each(array: msgspec.Raw) -> list[msgspec.Raw]:
    return msgspec.json.decode(array, type=list[msgspec.Raw])


def _those(wanted: set[int], snapshots: list[msgspec.Raw]) -> list[msgspec.Raw]:
    """Return those with the ids; they are looked for from the end, where refs are."""
    found: list[msgspec.Raw] = []
    for each in reversed(snapshots):
        if len(found) == len(wanted):
            break
        if _id(each) in wanted:
            found.append(each)
    return found[::-1]


def _id(snapshot: msgspec.Raw) -> int:
    return msgspec.json.decode(snapshot, type=_Snapshot).snapshot_id


def _properties(fields: _Fields) -> dict[str, str]:
    return msgspec.json.decode(fields.get("properties", b"{}"), type=dict[str, str])


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


_files: dict[str, MetadataFile] = {}
"""The files that were read or written last, by their locations; a file never changes."""


def _keep(location: str, file: MetadataFile) -> MetadataFile:
    _files[location] = file
    while len(_files) > _KEPT:
        _files.pop(next(iter(_files)), None)
    return file


class SlimFileIO(FileIO):
    """The FileIO that pyiceberg would take for a location, but for metadata files."""

    def new_input(self, location: str) -> InputFile:
        """See :meth:`FileIO.new_input`."""
        file = self._of(location).new_input(location)
        return _SlimFile(file) if _is_metadata(location) else file

    def new_output(self, location: str) -> OutputFile:
        """See :meth:`FileIO.new_output`."""
        file = self._of(location).new_output(location)
        return _WholeFile(file, self) if _is_metadata(location) else file

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """See :meth:`FileIO.delete`."""
        name = location if isinstance(location, str) else location.location
        self._of(name).delete(name)

    def stored(self, location: str) -> MetadataFile:
        """Return what is in a file of metadata."""
        return _stored(self._of(location).new_input(location))

    def _of(self, location: str) -> FileIO:
        properties = {name: told for name, told in self.properties.items() if name != _FILE_IO}
        return self._each.setdefault(location.partition(":")[0], load_file_io(properties, location))

    @cached_property
    def _each(self) -> dict[str, FileIO]:
        return {}


def _is_metadata(location: str) -> bool:
    return location.endswith(".metadata.json") and not location.endswith(".gz.metadata.json")


def _stored(file: InputFile) -> MetadataFile:
    found = _files.get(file.location)
    if found is None or found.size != len(file):
        with file.open() as data:
            read = data.read()
        history = _history(msgspec.json.decode(read, type=_Fields))
        found = _keep(file.location, MetadataFile(len(read), slim(read, file.location), history))
    return found


class _SlimFile(InputFile):
    def __init__(self, file: InputFile) -> None:
        super().__init__(file.location)
        self._file = file

    def __len__(self) -> int:
        return len(_stored(self._file).slim)

    def exists(self) -> bool:
        return self._file.exists()

    @override
    def open(self, seekable: bool = True) -> InputStream:
        del seekable
        return io.BytesIO(_stored(self._file).slim)


class _WholeFile(OutputFile):
    def __init__(self, file: OutputFile, files: SlimFileIO) -> None:
        super().__init__(file.location)
        self._file, self._files = file, files

    def __len__(self) -> int:
        return len(self._file)

    def exists(self) -> bool:
        return self._file.exists()

    def to_input_file(self) -> InputFile:
        return self._files.new_input(self.location)

    @override
    def create(self, overwrite: bool = False) -> OutputStream:
        return _WholeStream(self._file, self._files, overwrite=overwrite)


class _WholeStream(io.BytesIO):
    """What is written is gathered, and is the file once all of it is there."""

    def __init__(self, file: OutputFile, files: SlimFileIO, *, overwrite: bool) -> None:
        super().__init__()
        self._file, self._overwrite, self._files = file, overwrite, files

    def __exit__(self, *error: Any) -> None:  # noqa: PYI036 - as its base
        if error[0] is None:
            given, location = self.getvalue(), self._file.location
            parts, history = whole(given, self._files.stored)
            with self._file.create(overwrite=self._overwrite) as out:
                for part in parts:
                    out.write(part)
            size = sum(map(len, parts))
            _keep(location, MetadataFile(size, slim(given, location), history))
        super().__exit__(*error)
