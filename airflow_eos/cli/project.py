"""``airflow-eos.toml``, the settings of a pipeline's folder: commands there need no arguments."""

from __future__ import annotations

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


def read_settings(file: Path) -> dict[str, Any]:
    """Read the settings of commands; a path is seen from the folder of the file.

    Raises:
        ConfigurationError: the file cannot be read, or a setting is not known or means nothing.
    """
    try:
        given = tomllib.loads(read_text("--config", file))
    except tomllib.TOMLDecodeError as error:
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
        line = list(args)
        chosen = ctx.find_root().params.get("config")
        file = chosen or Path(FILE)
        if chosen is not None or file.is_file():
            ctx.default_map = self._defaults(read_settings(file))
        left = super().parse_args(ctx, args)
        said = (ctx.get_parameter_source(name) for name in _WHICH if name in ctx.params)
        if ctx.default_map and any(
            each is not None and each.name == "COMMANDLINE" for each in said
        ):
            ctx.default_map = None  # what another pipeline has must not be taken for this one's
            ctx.params.clear()
            left = super().parse_args(ctx, line)
        return left

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
