"""A folder of data files: their names, prepared and visible, and whose the folder is.

==================================================  ===========================================
``<folder>/[<c>=<value>/…]<key>.<end>``             visible: one file for each partition that a
                                                    task had
``_eos.<folder>/<name>/work/<key>/[<c>=<value>/…]<end>``  the same, prepared: beside the folder
==================================================  ===========================================

Some readers look into every folder below the one that they are given, whatever its name, and take
whatever lies there for data. So what is not decided lies beside the folder and not in it; and its
names have no ending of data, for those who read everything below the folder above.
A decision names the partitions alone: the rest of each path follows from the key.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from airflow_eos.checkpoint.pipeline import OwnedBeside, OwnershipFile
from airflow_eos.errors import CheckpointFormatError, ConfigurationError, Remedy, StoreError
from airflow_eos.kinds.lake.participant import checked
from airflow_eos.protocol.decision import OpenWork, require_own
from airflow_eos.protocol.participant import Member

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_eos.kinds.files.place import DataFolder
    from airflow_eos.protocol.decision import PreparedWork, WorkIdentity
    from airflow_eos.protocol.promise import OperatorRuling, Promise

NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
KEPT = "_eos"
"""What begins with this folder lies beside the data: see :func:`beside`."""
# Spark's ExternalCatalogUtils.escapePathName: other readers of Hive's layout take them back too.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_PART = r"[^=/\\\x00-\x1f.][^=/\\\x00-\x1f]*=[^=/\\\x00-\x1f]+"
_FOLDER = re.compile(rf"({_PART}(/{_PART})*)?")
_END = re.compile(r"[a-z0-9.]{1,40}", re.ASCII)


class WorkFile(NamedTuple):
    """One file of prepared work.

    Attributes:
        prepared: where nobody looks, relative to the folder.
        visible: where readers look.
        size: in bytes.
        tail: the sum of its last bytes, see ``tail_of``; None where the decision has none.
    """

    prepared: str
    visible: str
    size: int
    tail: int | None = None


def partition(columns: Sequence[str], values: Sequence[str | None]) -> str:
    """``day=2026-11-23/shop=a%2Fb``: the folder of these values, as Spark and Hive name it."""
    named = zip(columns, values, strict=True)
    return "/".join(f"{escape(column)}={escape(value or NO_VALUE)}" for column, value in named)


def escape(text: str) -> str:
    """``text`` as a part of a path."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def visible_name(folder: str, key: str, end: str) -> str:
    """The path of a file that readers see."""
    name = f"{checked(key)}.{end}"
    return f"{folder}/{name}" if folder else name


def detail(
    end: str, sizes: Mapping[str, int], tails: Mapping[str, int] | None = None
) -> dict[str, object]:
    """What a decision holds of files: their ending, and bytes and sum in each partition."""
    return {"end": end, "partitions": dict(sizes), "tails": dict(tails or {})}


def files_of(work: PreparedWork) -> tuple[WorkFile, ...]:
    """The files of prepared work, in an order that is always the same.

    Raises:
        CheckpointFormatError: the decision names what is no file of ours.
    """
    end, sizes = work.detail.get("end"), work.detail.get("partitions")
    tails = work.detail.get("tails", {})
    if (
        not isinstance(end, str)
        or not _END.fullmatch(end)
        or not isinstance(sizes, dict)
        or not isinstance(tails, dict)
        or not all(map(_is_sized, (*sizes.items(), *tails.items())))
    ):
        raise CheckpointFormatError(
            f"Work {work.identity} has the detail {work.detail}: expected an ending of files, and "
            "bytes by partition (column=value/…). Nothing was done with it. Was the checkpoint "
            "written by a newer release? Then use that one."
        )
    return tuple(
        WorkFile(
            prepared_name(folder, work.participant, work.key, end),
            visible_name(folder, work.key, end),
            sizes[folder],
            tails.get(folder),
        )
        for folder in sorted(sizes)
    )


def prepared_name(folder: str, name: str, key: str, end: str) -> str:
    """The path of the same file until it is decided: without an ending, by which readers go."""
    return "/".join(filter(None, (prepared_at(name, key), folder, end.replace(".", "-"))))


def visible_of(prepared: str, name: str, key: str) -> str:
    """The path that readers are going to see of a prepared file."""
    folder, _, end = f"/{prepared.removeprefix(prepared_at(name, key))}".rpartition("/")
    return visible_name(folder.strip("/"), key, end.replace("-", "."))


def prepared_at(name: str, key: str) -> str:
    """The work of ``key``, relative to the folder of data."""
    return f"{works_of(name)}/{checked(key)}"


def works_of(name: str) -> str:
    """Where all work of a participant is, relative to the folder of data."""
    return f"{kept_at(name)}/work"


def kept_at(name: str) -> str:
    """What a participant keeps beside the data."""
    return f"{KEPT}/{name}"


def beside(folder: str) -> str:
    """The name of what is kept beside a folder: readers of the one above pass over it.

    Spark does so where a name begins with an underscore and has no ``=``.
    """
    return f"{KEPT}.{folder.replace('~', '~0').replace('=', '~1')}"


def _is_sized(item: tuple[object, object]) -> bool:
    folder, size = item
    if not isinstance(folder, str) or not isinstance(size, int):
        return False
    return size >= 0 and _FOLDER.fullmatch(folder) is not None


# --- ownership ------------------------------------------------------------------------------------
# Base of both file participants: folder, owner name, ownership marker.


_MARK = "mark"
_MARK_FORM = re.compile(rb"[0-9a-f]{32}")


class Marked:
    """The mark of one name in one place.

    Args:
        place: where the data is.
        name: of the participant.
        mark: that is expected there.
    """

    def __init__(self, place: DataFolder, name: str, mark: str) -> None:
        self._place = place
        self._at = f"{name}/{_MARK}"
        self.mark = mark

    @classmethod
    def made(cls, place: DataFolder, name: str) -> Self:
        """The one that is there, else a new one.

        Raises:
            StoreError: the place refuses, it was written and is gone, or what is there is none.
        """
        path = f"{name}/{_MARK}"
        place.beside.create(path, uuid.uuid4().hex.encode())
        found = place.beside.get(path)
        if found is None:
            raise StoreError(
                f"{place.beside.location}/{path} was written and is gone: who deletes it?"
            )
        if _MARK_FORM.fullmatch(found) is None:  # two disks with an empty one would be the same
            raise StoreError(
                f"{place.beside.location}/{path} is damaged: which folder this is, is not known.",
                Remedy(
                    change=f"write the mark of participant {name!r} in eos/pipeline.json into it, "
                    "or remove it where nothing was delivered under that name",
                    start=True,
                ),
            )
        return cls(place, name, found.decode())

    def require(self) -> None:
        """Files that are not there say nothing where the disk is not there, or is another one."""
        self._place.require()
        kept = self._place.beside.get(self._at)
        found = None if kept is None else kept.decode("ascii", errors="replace")
        if found != self.mark:
            raise StoreError(
                f"{self._place.address} is not the folder of this pipeline: its mark is "
                f"{found or 'missing'}, expected {self.mark}. Is the disk mounted here? Nothing "
                "was concluded from files that are not there."
            )


# --- ownership ------------------------------------------------------------------------------------


KIND = "files"


class OwnedFolder(OwnedBeside):
    """The half of a participant that both forms share.

    Args:
        place: where readers look.
        name: the participant's name in decisions.
        mark: the random id of the name in this folder, which another disk does not have.
        more: of the address, beside folder and mark.
    """

    def __init__(
        self, place: DataFolder, *, name: str, mark: str, more: Mapping[str, str] | None = None
    ) -> None:
        self._place = place
        self._name = name
        self._marked = Marked(place, name, mark)
        self._beside = OwnershipFile(place.kept(name), f"name {name!r} in {place.address}")
        self._address = {"folder": place.address, "mark": mark, **(more or {})}

    @property
    def members(self) -> tuple[Member, ...]:
        """At the folder, on this disk or in this bucket."""
        return (Member(self._name, KIND, self._address, f"files:{self._place.address}"),)

    def check(self, works: Sequence[PreparedWork]) -> None:
        """Each is of files of ours."""
        require_own(works, KIND, self._name)
        for work in works:
            files_of(work)

    def open(self, *, besides: Collection[WorkIdentity] = ()) -> tuple[OpenWork, ...]:
        """List what is prepared and not visible; never the folder that readers look at."""
        known = {work.key for work in besides}
        self._marked.require()
        found = []
        for key, entries in self._place.listed(works_of(self._name)).items():
            visible = [visible_of(entry.path, self._name, key) for entry in entries]
            if key in known or None not in self._place.sizes(visible):
                continue
            at_ms = min(entry.modified_at_ms for entry in entries)
            places = tuple(f"{self._place.address}/{path}" for path in visible)
            found.append(OpenWork(KIND, self._name, key, at_ms, None, places))
        return tuple(sorted(found, key=lambda each: each.key))

    def _altered(self, files: Sequence[WorkFile]) -> set[str]:
        """The prepared paths, of these that are there, at which another content is than promised.

        A copy, or somebody, has put another file of the same size there.
        """
        asked = [file for file in files if file.tail is not None]
        found = self._place.tails([(file.prepared, file.size) for file in asked])
        return {
            file.prepared
            for file, tail in zip(asked, found, strict=True)
            if tail not in (None, file.tail)
        }

    def _prepared(self, key: str) -> list[str]:
        return [entry.path for entry in self._place.below(prepared_at(self._name, key))]

    def require_settled(self, promise: Promise, said: OperatorRuling) -> None:
        """Nothing is asked: whoever reads them may have moved old files away."""


# --- publish mode ---------------------------------------------------------------------------------
# The folder's publish mode, recorded once so that all writers use the same.


_FORM = "form"  # no participant can be called so


def require_form(place: DataFolder, form: str) -> None:
    """Take ``form`` for the folder, unless it has one: two that start at once see no data yet.

    Raises:
        ConfigurationError: it has the other one.
        StoreError: the place refuses, or what was written is gone.
    """
    found = place.beside.get(_FORM)
    if found is None:
        place.beside.create(_FORM, form.encode())
        found = place.beside.get(_FORM)
    if found is None:
        raise StoreError(
            f"{place.beside.location}/{_FORM} was written and is gone: who deletes it?"
        )
    if found != form.encode():
        theirs = found.decode("ascii", errors="replace")
        raise ConfigurationError(
            f"{place.address} is written with publish={theirs!r}, and not {form!r}: readers see "
            "the files of one form alone. Give another folder, or the same form."
        )
