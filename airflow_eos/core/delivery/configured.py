"""Outputs and guarantee as configuration names them; errors are raised before Spark is started.

``[{"name": "orders", "kind": "kafka", "topic": "orders.clean"}, {"name": "totals", "kind":
"postgres", "table": "totals", "rows": ["key", "amount"]}]``: name, kind, rows and keep_rows are
those of an :class:`~airflow_eos.core.delivery.outputs.Output`, all other keys are options of the
kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec

from airflow_eos.core.arguments import GUARANTEES, Word
from airflow_eos.core.delivery.options import nearest, options_of
from airflow_eos.core.delivery.outputs import Output
from airflow_eos.core.delivery.task import require_alone
from airflow_eos.core.protocol.decision import Guarantee, check_name
from airflow_eos.core.settings import SECRET_FILES
from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_eos.core.delivery.options import AppFacts, SinkOptions

_EXPECTED = (
    'expected a list such as [{"name": "orders", "kind": "kafka", "topic": "orders.clean"}], or '
    "that as JSON"
)


class _RowsConfig(msgspec.Struct, frozen=True):
    rows: str | tuple[str, ...] | None = None
    keep_rows: bool = False


@dataclass(frozen=True, slots=True)
class ChosenOutput:
    """One configured output, by name and kind; ``rows`` as SQL text, see :class:`Output`."""

    name: str
    kind: str
    rows: str | tuple[str, ...] | None
    options: SinkOptions
    keep_rows: bool = False

    def __str__(self) -> str:
        return f"output {self.name!r} ({self.kind})"

    def output(self, app: AppFacts, reach: Mapping[str, Any]) -> Output:
        """Return the output itself; no system is asked yet.

        Raises:
            ConfigurationError: an option cannot work, or nothing says how to reach the system.
        """
        how = reach.get(self.name, reach.get(self.kind))
        try:
            sink = self.options.sink(self.name, app, how)
            return Output(self.name, sink, self.rows, keep_rows=self.keep_rows)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self}: {error}") from error


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """The configured outputs and their delivery guarantee.

    Attributes:
        guarantee: the guarantee of all outputs.
        chosen: the outputs; empty where the app uses its own.
    """

    guarantee: Guarantee = "exactly_once"
    chosen: tuple[ChosenOutput, ...] = ()

    @classmethod
    def of(cls, guarantee: str, outputs: object = None) -> OutputConfig:
        """Return the configured outputs; ``outputs`` is a list of objects, its JSON text, or None.

        Raises:
            ConfigurationError: a guarantee, kind, name or option is not known, missing or of
                another type.
        """
        guarantee = Word(words=GUARANTEES).of("guarantee", guarantee)
        chosen = () if outputs is None else tuple(map(_chosen, _listed(outputs)))
        for each in chosen:
            if guarantee not in each.options.guarantees:
                raise ConfigurationError(
                    f"{each} has no guarantee {guarantee!r}: expected "
                    f"{' or '.join(map(repr, each.options.guarantees))} for all outputs."
                )
        twice = [name for name, n in Counter(each.name for each in chosen).items() if n > 1]
        if twice:
            raise ConfigurationError(
                f"outputs: more than one is called {', '.join(twice)}. A name says which prepared "
                "work is whose: give each its own."
            )
        return cls(cast("Guarantee", guarantee), chosen)

    def outputs(self, app: AppFacts, reach: Mapping[str, Any]) -> tuple[Output, ...]:
        """Return the outputs themselves.

        Args:
            app: the settings that hold for all outputs.
            reach: how to reach the systems, by the output's name or kind.

        Raises:
            ConfigurationError: one of them cannot work, or two would share transactional ids.
        """
        outputs = tuple(each.output(app, reach) for each in self.chosen)
        require_alone([each.sink for each in outputs])
        shared = Counter(prefix for each in outputs if (prefix := transactional_prefix(each)))
        for prefix in (prefix for prefix, n in shared.items() if n > 1):
            names = [each.name for each in outputs if transactional_prefix(each) == prefix]
            raise ConfigurationError(
                f"outputs {', '.join(names)} have one transactional_id_prefix, {prefix!r}, and "
                "would end each other's transactions: give each its own, and keep it."
            )
        return outputs


def transactional_prefix(output: Output) -> str | None:
    """Return the prefix of the output's transactional ids in Kafka; None for other systems."""
    return getattr(output.sink, "transactional_id_prefix", None)


def as_json(outputs: object) -> str | None:
    """Return outputs as the JSON text by which an app is told them; it holds no secret."""
    return None if outputs is None else msgspec.json.encode(_listed(outputs)).decode()


def _listed(outputs: object) -> Sequence[Any]:
    if isinstance(outputs, str):
        try:
            outputs = msgspec.json.decode(outputs)
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"outputs cannot be read: {error}; {_EXPECTED}.") from error
    if not isinstance(outputs, Sequence) or isinstance(outputs, (str, bytes)) or not outputs:
        found = "an empty list" if outputs == [] else f"a {type(outputs).__name__}"
        raise ConfigurationError(f"outputs is {found}; {_EXPECTED}.")
    return outputs


def _chosen(given: object) -> ChosenOutput:
    """Return one output of the list, with every option of the right name and type."""
    if not isinstance(given, Mapping) or not {"name", "kind"} <= given.keys():
        found = sorted(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        raise ConfigurationError(f"outputs has {found}, without name and kind; {_EXPECTED}.")
    name, kind = check_name(str(given["name"])), str(given["kind"])
    try:
        options = options_of(kind)
    except ConfigurationError as error:
        raise ConfigurationError(f"output {name!r}: {error}") from error
    said = {str(each): value for each, value in given.items() if each not in ("name", "kind")}
    rows, made = _decoded(said, options, f"output {name!r} ({kind})")
    return ChosenOutput(name, kind, rows.rows, made, rows.keep_rows)


def _decoded(
    said: Mapping[str, Any], kind: type[SinkOptions], where: str
) -> tuple[_RowsConfig, SinkOptions]:
    """Return the rows and the options of an output."""
    of_all = _RowsConfig.__struct_fields__
    names = (*of_all, *kind.__struct_fields__)
    takes = f"It takes {', '.join(names)}."
    for each in sorted(said.keys() - set(names)):
        raise ConfigurationError(
            f"{where} has no option {each!r}{nearest(each, names)}. {takes} Addresses and "
            "passwords come from participant_conn_ids, or from the file that "
            f"{SECRET_FILES['participants']} names."
        )
    rows = {each: value for each, value in said.items() if each in of_all}
    options = {each: value for each, value in said.items() if each not in of_all}
    try:
        # Not strict: values that a template has rendered are text.
        return msgspec.convert(rows, _RowsConfig, strict=False), msgspec.convert(
            options, kind, strict=False
        )
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}. {takes}") from error
