"""The write-ahead participant: decided rows, kept in the checkpoint, go to a user's callable.

The checkpoint is the witness, and claim and notes of the name lie beside the rows. So an older copy
of the whole checkpoint, put back in place, cannot be told from the newest one: its batches would
be delivered again, under tokens that the callable has never seen. A copy of ``offsets/`` and
``commits/`` without ``eos/`` is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_eos.core.checkpoint.pipeline import OwnedBeside, OwnershipFile, checkpoint_of
from airflow_eos.core.protocol.decision import is_formed
from airflow_eos.core.protocol.participant import Member
from airflow_eos.errors import ConfigurationError, DeliveryError
from airflow_eos.kinds.spill.participant import SpilledRows, SpillParticipant

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_eos.core.checkpoint.store import CheckpointStore
    from airflow_eos.core.protocol.decision import Decision, PreparedWork
    from airflow_eos.core.protocol.participant import Owner

Deliver = Callable[[str, "pa.Table"], object]

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)


def check_deliver(name: str) -> str:
    """Return ``name`` if it has the form of a callable's name (ConfigurationError)."""
    if not is_formed(name, _NAME):
        raise ConfigurationError(
            f"deliver {name!r}: expected 'package.module:function', where every process that "
            "commits can import it: the driver, and whoever runs a recovery."
        )
    return name


def deliver_of(how: object) -> tuple[str, Any] | None:
    """Return the callable's name and its ``reach`` argument; None: ``how`` names no callable."""
    asked = {"deliver": how} if isinstance(how, str) else how
    if not isinstance(asked, Mapping) or not isinstance(asked.get("deliver"), str):
        return None
    return asked["deliver"], asked.get("reach")


def loaded(name: str, reach: Any = None) -> Deliver:
    """Import the callable of that name, and bind ``reach`` to it where one is given.

    Raises:
        ConfigurationError: it cannot be imported, or cannot be called.
    """
    module, _, path = check_deliver(name).partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"deliver {name!r} cannot be imported here: {error}. Install or package its module "
            "for the driver (spark-submit --py-files), and where recovery runs."
        ) from error
    if not callable(found):
        raise ConfigurationError(
            f"deliver {name!r} is a {type(found).__name__}: expected a function (token, rows)."
        )
    return found if reach is None else partial(found, reach=reach)


KIND = "wal"


class WriteAheadParticipant(OwnedBeside, SpillParticipant):
    """See :class:`airflow_eos.core.protocol.participant.Participant`.

    Args:
        kept: where the rows wait.
        name: the participant's name in decisions.
        instance_id: the random id of the name in this checkpoint.
        deliver: the callable, which takes (token, rows).
        target: the name of the callable, for people.
    """

    kind = KIND

    def __init__(
        self, kept: SpilledRows, *, name: str, instance_id: str, deliver: Deliver, target: str
    ) -> None:
        super().__init__(kept, name=name, instance_id=instance_id)
        self._deliver = deliver
        self._target = target
        called = f"name {name!r} in {kept.location_of(kept.folder)}"
        self._beside = OwnershipFile(kept.store, called, kept.folder)

    @property
    def members(self) -> tuple[Member, ...]:
        """The participant, by its mark in this checkpoint; the callable may move."""
        return (Member(self._name, KIND, {"mark": self._instance_id}, self._target),)

    def apply(self, work: PreparedWork, rows: pa.Table) -> None:
        """Call the callable; its error is not read as an outcome (DeliveryError)."""
        try:
            self._deliver(work.key, rows)
        except Exception as error:
            raise DeliveryError(
                f"{self._target} raised {type(error).__name__} for token {work.key} "
                f"({work.rows} rows of {KIND} {self._name!r}). It is not known whether it had an "
                "effect. The rows are kept: start the query again, or run a recovery, and it is "
                "called again with the same token."
            ) from error

    def note(self, decision: Decision, owner: Owner) -> None:
        """Note the decision beside the rows."""
        OwnedBeside.note(self, decision, owner)
        SpillParticipant.note(self, decision, owner)


def made(store: CheckpointStore, name: str, deliver: str, reach: Any) -> WriteAheadParticipant:
    """Make the participant of a sink that starts; mark the checkpoint if it has no mark.

    Raises:
        ConfigurationError: the callable cannot be imported.
        StoreError: the store refuses.
    """
    call = loaded(deliver, reach)
    kept = SpilledRows(store, name)
    return WriteAheadParticipant(
        kept, name=name, instance_id=kept.ensure_instance_id(), deliver=call, target=deliver
    )


def connect(
    member: Member, how: object, *, store: CheckpointStore | None = None, timeout_s: float
) -> WriteAheadParticipant:
    """Make the participant of ``member``, which delivers by the callable that ``how`` names.

    The callable in the checkpoint is never imported: whoever writes there could run any code here.

    Args:
        member: as ``eos/pipeline.json`` has it.
        how: ``"package.module:function"``, or ``{"deliver": that, "reach": …}``.
        store: the checkpoint.
        timeout_s: not needed.

    Raises:
        ConfigurationError: ``how`` names no callable, or there is no checkpoint.
        StoreError: the checkpoint is another one.
    """
    del timeout_s
    asked = deliver_of(how)
    if asked is None:
        raise ConfigurationError(
            f"Which callable delivers the rows of {member}? The pipeline used {member.target!r}; "
            "it is not imported because a checkpoint says so. Give it yourself: "
            f"{{{member.name!r}: {{'deliver': 'package.module:function', 'reach': …}}}}."
        )
    deliver, reach = asked
    participant = WriteAheadParticipant(
        SpilledRows(checkpoint_of(member, store), member.name),
        name=member.name,
        instance_id=member.address.get("mark", ""),
        deliver=loaded(deliver, reach),
        target=deliver,
    )
    participant.require_checkpoint()
    return participant
