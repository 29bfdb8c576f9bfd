"""The options of a sink in configuration, and the kinds of sinks that configuration can choose."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import msgspec

from airflow_eos.core.delivery.port import PROGRESS, Sink
from airflow_eos.core.participants import KINDS, home_of
from airflow_eos.core.protocol.decision import Guarantee
from airflow_eos.core.settings import SECRET_FILES
from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class AppFacts:
    """The settings that an app is given once, for all its outputs.

    Attributes:
        kafka: the ``KafkaSettings`` of the cluster that the app reads from, and writes to where an
            output has no other; the core knows no system.
        prefix: for transactional ids and like names in other systems; owned by one checkpoint.
        transaction_timeout, batch_within, recover_within: see :class:`KafkaSink`.
    """

    kafka: Any
    prefix: str
    transaction_timeout: timedelta
    batch_within: timedelta
    recover_within: timedelta


class SinkOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The options of an output of one kind: a field for each, None where an option is not given.

    No field holds an address or a password. Those come with ``how``, from an Airflow connection or
    from a file that only its user may read.
    """

    guarantees: ClassVar[tuple[str, ...]] = get_args(Guarantee)
    """The guarantees that the kind has."""

    @abstractmethod
    def sink(self, name: str, app: AppFacts, how: Any) -> Sink:
        """Return the sink of this output; no system is asked yet.

        Args:
            name: the name of the output.
            app: the settings that hold for all outputs.
            how: how to reach the system, as the kind's participant is told; None: nothing says so.

        Raises:
            ConfigurationError: the sink cannot work with these options.
        """

    def given(self) -> dict[str, Any]:
        """Return the options that were given; the sink has defaults for the others."""
        said = msgspec.structs.asdict(self)
        return {name: value for name, value in said.items() if value is not None}


def unreached(expected: str) -> ConfigurationError:
    """Return the error for an output whose system nobody has said how to reach."""
    return ConfigurationError(
        f"nothing usable says how to reach it: expected {expected}. On the operator: "
        "participant_conn_ids, by the output's name or kind. Elsewhere: "
        f"{SECRET_FILES['participants']} names a file with a JSON object by name or kind, which "
        "only you may read."
    )


# --- kinds ----------------------------------------------------------------------------------------
# The sinks that configuration can choose, by kind.
#
# The module ``sink`` of a kind's folder names its :class:`SinkOptions` as ``OPTIONS``; the module
# is imported on first use. A user's own package gives its kinds as entry points of the group
# ``airflow_eos.sinks``: the kind's name, and its class.


GROUP = "airflow_eos.sinks"


def options_of(kind: str) -> type[SinkOptions]:
    """Return the options class of this kind of output.

    Raises:
        ConfigurationError: no installed package has that kind, or it cannot be imported.
    """
    found = {each.name: each for each in entry_points(group=GROUP)}
    for ours in KINDS:
        if ours != PROGRESS:  # a consumer group is chosen by an argument of its own
            found[ours] = EntryPoint(ours, f"{home_of(ours)}.sink:OPTIONS", GROUP)
    if kind not in found:
        raise ConfigurationError(
            f"kind {kind!r}{nearest(kind, found)}: this installation knows "
            f"{', '.join(sorted(found))}. Another one is an entry point {GROUP!r} of an installed "
            "package, where the app runs and on Airflow's workers."
        )
    try:
        options: type[SinkOptions] = found[kind].load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"kind {kind!r} is {found[kind].value}, which cannot be imported here: {error}."
        ) from error
    return options


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint at names near ``name``, to follow it in a message; empty where none is near."""
    near = get_close_matches(name, known, n=2)
    return f" (near: {', '.join(near)})" if near else ""
