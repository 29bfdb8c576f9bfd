"""Options that a kind of sink accepts from configuration."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import msgspec

from airflow_eos.delivery.port import PROGRESS, Guarantee, Sink
from airflow_eos.errors import ConfigurationError
from airflow_eos.participants import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_eos.kafka.client.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class AppFacts:
    """What an app is told once, for all its outputs.

    Attributes:
        kafka: the cluster that it reads from, and writes to where an output has no other.
        prefix: owned by one checkpoint; of transactional ids, and of what others call so.
        transaction_timeout, batch_within, recover_within: see :class:`KafkaSink`.
    """

    kafka: KafkaSettings
    prefix: str
    transaction_timeout: timedelta
    batch_within: timedelta
    recover_within: timedelta


class SinkOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be said of an output of one kind: a field each, None where nothing was said.

    No field holds an address or a password. These come with ``how``, from an Airflow connection or
    from a file that only its user may read.
    """

    guarantees: ClassVar[tuple[str, ...]] = get_args(Guarantee)
    """Those that the kind has."""

    @abstractmethod
    def sink(self, name: str, app: AppFacts, how: Any) -> Sink:
        """The sink of this output; nothing is asked of any system yet.

        Args:
            name: of the output.
            app: what holds for all.
            how: to get there, as the participant of the kind is told; None where nothing says so.

        Raises:
            ConfigurationError: it cannot work so.
        """

    def given(self) -> dict[str, Any]:
        """The options that were said; the sink knows what holds for the others."""
        said = msgspec.structs.asdict(self)
        return {name: value for name, value in said.items() if value is not None}


def unreached(expected: str) -> ConfigurationError:
    """The error for an output that nobody has told how to get to its system."""
    return ConfigurationError(
        f"nothing usable says how to reach it: expected {expected}. On the operator: "
        "participant_conn_ids, by the output's name or kind. Elsewhere: EOS_PARTICIPANTS_FILE "
        "names a file with a JSON object by name or kind, which only you may read."
    )


# --- kinds ----------------------------------------------------------------------------------------
# The sinks that configuration can choose, by kind.
#
# The module ``sink`` of a kind's folder names its :class:`SinkOptions` as ``OPTIONS``; it is
# imported when it is first needed. A package of a user's own gives its kinds as entry points of the
# group ``airflow_eos.sinks``: the kind's name, and its class.


GROUP = "airflow_eos.sinks"


def options_of(kind: str) -> type[SinkOptions]:
    """What may be said of an output of this kind.

    Raises:
        ConfigurationError: no package here has that kind, or it cannot be imported.
    """
    found = {each.name: each for each in entry_points(group=GROUP)}
    for ours in KINDS:
        if ours != PROGRESS:  # a consumer group is chosen by an argument of its own
            found[ours] = EntryPoint(ours, f"airflow_eos.kinds.{ours}.sink:OPTIONS", GROUP)
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
    """What was probably meant, to be put behind ``name`` in a message; empty where nothing is."""
    near = get_close_matches(name, known, n=2)
    return f" (near: {', '.join(near)})" if near else ""
