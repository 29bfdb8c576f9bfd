"""``airflow-eos explain``: a page of each error, and docs/reference/errors.md, from errors.py."""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator
from typing import Annotated

import typer

from airflow_eos import errors
from airflow_eos.cli.options import AsJson, tell
from airflow_eos.core.arguments import nearest
from airflow_eos.errors import NO_RETRY_HEALS, REFUSED_STATUS, ConfigurationError, EosError, advice

_NAME = re.compile(r"[a-z]+error", re.IGNORECASE)


def explain(
    error: Annotated[
        list[str] | None,
        typer.Argument(help="The error's name, a line that has it, or an app's exit status."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what an error means, where to look and what to do; without ERROR, list all.

    A line of a log does as well: the first error of ours in it counts.
    """
    kinds = _asked(" ".join(error)) if error else ERRORS
    answer = [page(each) for each in kinds]
    text = "\n\n".join(map(_text, answer)) if error else "\n".join(map(_line, answer))
    tell(answer, text, as_json=as_json)


def _below(kind: type[EosError]) -> Iterator[type[EosError]]:
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from _below(each)


ERRORS = tuple(_below(EosError))
"""Every error of the package, each behind the one that it is a kind of."""


def page(kind: type[EosError]) -> dict[str, str]:
    """Return what there is to say of an error, by heading."""
    above = kind.__mro__[1]
    heals = not issubclass(kind, NO_RETRY_HEALS)
    return {
        "error": kind.__name__,
        "means": inspect.cleandoc(kind.__doc__ or ""),
        "kind of": "" if above is EosError else above.__name__,
        "look": kind.look,
        "do": advice(kind.remedies),
        "restart": "may heal it, and Airflow tries"
        if heals
        else f"heals it only after that (an app's exit status {REFUSED_STATUS})",
    }


def _asked(text: str) -> tuple[type[EosError], ...]:
    """Return the errors that are asked for (ConfigurationError: there is none of that name)."""
    if text == str(REFUSED_STATUS):
        return tuple(each for each in ERRORS if issubclass(each, NO_RETRY_HEALS))
    by_name = {each.__name__.lower(): each for each in ERRORS}
    for name in _NAME.findall(text):
        if name.lower() in by_name:
            return (by_name[name.lower()],)
    near = nearest(text.lower(), tuple(by_name))
    raise ConfigurationError(
        f"{text!r} names no error of this package"
        + (f": did you mean {by_name[near].__name__}?" if near else ".")
        + " `airflow-eos explain` lists all."
    )


def _text(said: dict[str, str]) -> str:
    head, *others = said.items()
    told = [
        textwrap.fill(
            what,
            shutil.get_terminal_size().columns,
            initial_indent=f"  {name:<9} ",
            subsequent_indent=" " * 12,
            break_on_hyphens=False,
            break_long_words=False,
        )
        for name, what in others
        if what
    ]
    return "\n".join([head[1], *told])


def _line(said: dict[str, str]) -> str:
    return f"{said['error']:<28} {said['means'].splitlines()[0]}"


_HEAD = """\
# Every error

`airflow-eos explain ERROR` prints the same. The error's own message has the names and numbers, and
`plan`, `doctor` and the page show it; `--json` has what to do as `remedies`. Give each command your
`-b`, `--kafka-config` or `--reach`.

| error | what it means | where to look | what to do |
|---|---|---|---|"""


def reference() -> str:
    """Return docs/reference/errors.md: ``python -m airflow_eos.cli.explain`` prints it."""
    rows = [page(each) for each in ERRORS]
    lines = [
        f"| `{row['error']}` | {row['means']} | {_linked(row['look'])} | {row['do']} |"
        for row in rows
    ]
    return "\n".join((_HEAD, *lines, ""))


def _linked(text: str) -> str:
    def link(found: re.Match[str]) -> str:
        return f"[{found[2].replace('-', ' ')}](../{found[1]}.md#{found[2]})"

    return re.sub(r"docs/([\w-]+)\.md#([\w-]*\w)", link, text)


if __name__ == "__main__":
    print(reference(), end="")  # noqa: T201
