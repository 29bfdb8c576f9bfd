"""``airflow-eos.toml``, the settings of a pipeline's folder: commands there need no arguments."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from airflow_eos.cli.options import PlainCommand, read_text
from airflow_eos.core.arguments import Argument, Text, Topics, require_known
from airflow_eos.core.settings import SETTINGS
from airflow_eos.errors import ConfigurationError

FILE = "airflow-eos.toml"
_TOPICS = Argument.stated(Topics)
_NAMES = {name: setting.argument for name, setting in SETTINGS.items()} | {
    "input_topic": _TOPICS,
    "output_topic": _TOPICS,
    "kafka_config": Argument(Text()),
}
_OTHERWISE = {
    **{setting.short: name for name, setting in SETTINGS.items()},
    "checkpoints": "checkpoint_location",
    "group": "consumer_group",
    "topic": "output_topic",
    "topics": "output_topic",
}
"""The settings whose parameter of a command has another name."""
_WHICH = ("checkpoint", "checkpoints", "input_topic", "output_topic", "topics", "plan_file")
"""The parameters that say which pipeline, or which part of one, a command is about."""


def _places(told: Any) -> list[str]:
    """Return paths in full, and topics, of which the line's and the file's can be compared."""
    return list(map(os.path.abspath, [told] if isinstance(told, str | Path) else told or ()))


def read_settings(file: Path) -> dict[str, Any]:
    """Read the settings of commands; a path is seen from the folder of the file.

    Raises:
        ConfigurationError: the file cannot be read, or a setting is not known or means nothing.
    """
    try:
        given = tomllib.loads(read_text("--config", file))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{file} is no TOML: {error}.") from error
    require_known(str(file), given, _NAMES)
    found = {name: _NAMES[name].of(f"{file}: {name}", value) for name, value in given.items()}
    for name in found.keys() & {"checkpoint_location", "kafka_config"}:
        if "://" not in found[name]:
            found[name] = str(file.parent / found[name])
    return found


class ProjectCommand(PlainCommand):
    """A command whose parameters come from the folder's file where the line names no pipeline."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the line, with the file's settings as defaults unless it says which pipeline."""
        if "--" in args and any(each.name == "arguments" for each in self.params):
            own, theirs = args[: args.index("--")], args[args.index("--") + 1 :]
            left = self.parse_args(ctx, own)  # else the app's first would be the checkpoint
            ctx.params["arguments"] = [*(ctx.params["arguments"] or ()), *theirs]
            return left
        line = list(args)
        chosen = ctx.find_root().params.get("config")
        file = Path(chosen or FILE)
        if chosen is None and not file.is_file():
            return super().parse_args(ctx, args)
        ctx.default_map = defaults = self._defaults(read_settings(file))
        # Typer before 0.29 looks into no map for an argument that takes many.
        many = [each for each in self.params if each.nargs == -1 and each.name in defaults]
        for each in many:
            each.required = False
        left = super().parse_args(ctx, args)
        for each in many:
            each.required = True
        said = [name for name in _WHICH if name in ctx.params and self._is_said(ctx, name)]
        if any(_places(ctx.params[name]) != _places(defaults.get(name)) for name in said):
            ctx.default_map = None  # what another pipeline has must not be taken for this one's
            ctx.params.clear()
            return super().parse_args(ctx, line)
        ctx.params |= {str(each.name): defaults[str(each.name)] for each in many}
        return left

    @staticmethod
    def _is_said(ctx: Any, name: str) -> bool:
        """Whether the line has the parameter; before Typer 0.29 one of many is said to be there."""
        source = ctx.get_parameter_source(name)
        return bool(ctx.params[name]) and source is not None and source.name == "COMMANDLINE"

    def _defaults(self, settings: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for each in self.params:
            name = str(each.name)
            value = settings.get(_OTHERWISE.get(name, name))
            if getattr(each, "multiple", False) or each.nargs == -1:
                value = [value] if isinstance(value, str) else value
            elif isinstance(value, list):
                value = value[0] if len(value) == 1 else None  # which of them is for a person
            found |= {} if value is None else {name: value}
        return found
