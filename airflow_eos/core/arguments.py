"""The types of arguments, read where each stands: for Python, DAGs, apps and shells alike.

YAML, JSON and templates give what they have: seconds, words, texts, nothing. So an argument is
checked where it is given, and a template again once it is rendered. A value with one possible
meaning is taken; any other is refused by its name and value, and never acted on.

A duration is a ``timedelta``, seconds as a number, or a text with units, such as ``"10 seconds"``
or ``"1 minute 30 seconds"``; a number alone in a text is seconds. Nothing else, anywhere.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, wraps
from inspect import Parameter, signature, unwrap
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from airflow_eos.errors import ConfigurationError
from airflow_eos.secret_names import is_secret

_P = ParamSpec("_P")
_R = TypeVar("_R")

Guarantee = Literal["exactly_once", "at_least_once", "at_most_once"]
GUARANTEES = get_args(Guarantee)

Cancel = Literal["drain", "kill", "leave"]
"""What the app does when its task is stopped: end after its batch, end at once, or go on."""

AVAILABLE_NOW = "available-now"
"""The word in the place of a trigger's interval that means: read what there is, and stop."""

_UNITS = {
    **dict.fromkeys(("millisecond", "milliseconds", "ms"), timedelta(milliseconds=1)),
    **dict.fromkeys(("second", "seconds", "s"), timedelta(seconds=1)),
    **dict.fromkeys(("minute", "minutes", "min"), timedelta(minutes=1)),
    **dict.fromkeys(("hour", "hours", "h"), timedelta(hours=1)),
    **dict.fromkeys(("day", "days", "d"), timedelta(days=1)),
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?", re.ASCII)
_NEVER_ENDS = timedelta(days=36_500)
_SHOWN = 100
_DIGITS, _LARGEST = 18, 10**18
_CREDENTIALS = ("storage_options", "catalog")
"""Arguments that hold a password where a user gives one."""
_NOTHING = "None"
"""The text that a template makes of None where it is not rendered natively."""


def is_template(value: object) -> bool:
    """Whether the value is a text for Jinja to render."""
    return isinstance(value, str) and ("{{" in value or "{%" in value)


class ArgumentType(ABC):
    """The type of an argument. Whether None is allowed is for the argument's annotation to say."""

    def of(self, name: str, value: object) -> Any:
        """Convert the value to what it means.

        Raises:
            ConfigurationError: the value means nothing, or several things; by name and value.
        """
        if value is None:
            raise self.refusal(name, value, "leave it out for its default")
        if is_template(value) and not isinstance(self, Anything | Verbatim):
            why = "nothing renders it here, or it was rendered to another template"
            raise self.refusal(name, value, why)
        return self._converted(name, value)

    def refusal(self, name: str, value: object, why: str = "") -> ConfigurationError:
        """Return the error that names the argument and its value, and says what was expected.

        What a template made of options with a password in them is named by its type alone.
        """
        more, shown = f": {why}" if why else "", f"{value!r}"
        if is_secret(f"{name}={shown}") or name.partition("[")[0] in _CREDENTIALS:
            shown = f"{type(value)}, not shown"
        said = f"{name}={shown[:_SHOWN]}: expected {self._expected()}{more}"
        return ConfigurationError(said if said.endswith("?") else f"{said}.")

    def stranger(self, name: str, value: object) -> ConfigurationError:
        """Return :meth:`refusal` for what may hold passwords, or is long: only its type is said."""
        found = f"a value of {type(value).__name__}" if value else "an empty one"
        return ConfigurationError(f"{name}: expected {self._expected()}, found {found}.")

    @abstractmethod
    def _converted(self, name: str, value: object) -> Any:
        """Convert the value, which is not None."""

    @abstractmethod
    def _expected(self) -> str:
        """Say what the value should have been."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anything(ArgumentType):
    """An argument of any type: its value is checked where it is used."""

    def _converted(self, name: str, value: object) -> Any:
        del name
        return value

    def _expected(self) -> str:
        return "a value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance(ArgumentType):
    """An instance of a class of this name, which is not imported for the check."""

    kind: str

    def _converted(self, name: str, value: object) -> Any:
        if self.kind not in (each.__name__ for each in type(value).__mro__):
            raise self.refusal(name, value)
        return value

    def _expected(self) -> str:
        return f"an instance of {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(ArgumentType):
    """A text that is not empty, or an integer that a template rendered natively (``20260105``).

    Spaces and line ends around the text are a template's, too, and are removed. ``None`` is a name
    that a template did not find: no connection, prefix or place has that name.

    ``several``: a list of texts is allowed, too.
    """

    several: bool = False

    def _converted(self, name: str, value: object) -> str | list[str]:
        if self.several and isinstance(value, list | tuple) and value:
            return [Text().of(name, each) for each in value]
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        text = value.strip() if isinstance(value, str) else ""
        if not text or not text.isprintable():
            raise self.refusal(name, value)
        if text == _NOTHING:
            raise self.refusal(name, value, "a template has rendered to nothing")
        return text

    def _expected(self) -> str:
        return "a text that is not empty" + (", or a list of them" if self.several else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbatim(ArgumentType):
    """A text that is taken as it is: its spaces, lines and braces are of a name, or of a password.

    ``place``: a ``pathlib.Path`` is allowed, too.
    """

    place: bool = False

    def _converted(self, name: str, value: object) -> str:
        if self.place and isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str) or not value:
            raise self.stranger(name, value)
        return value

    def _expected(self) -> str:
        return "a text that is not empty" + (", or a path" if self.place else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Having(ArgumentType):
    """An object with an attribute or a method of that name: a user may have written its class.

    ``what``: what the object is. ``several``: a list of objects is allowed, too.
    """

    what: str
    name: str
    several: bool = False

    def _converted(self, name: str, value: object) -> Any:
        many = value if self.several and isinstance(value, list | tuple) and value else [value]
        if not all(hasattr(each, self.name) for each in many):
            raise self.stranger(name, value)
        return value

    def _expected(self) -> str:
        return self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class Word(ArgumentType):
    """One of ``words``; in any case, and ``-`` is ``_``. ``none``: texts that mean None."""

    words: tuple[str, ...]
    none: tuple[str, ...] = ()

    def _converted(self, name: str, value: object) -> str | None:
        if isinstance(value, str) and value in self.none:
            return None
        word = value.strip().lower().replace("-", "_") if isinstance(value, str) else ""
        if word not in self.words or not isinstance(value, str):
            near = nearest(word, self.words)
            raise self.refusal(name, value, f"did you mean {near!r}?" if near else "")
        return word

    def _expected(self) -> str:
        return "one of " + ", ".join(map(repr, self.words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(ArgumentType):
    """A flag: True or False, also as words."""

    def _converted(self, name: str, value: object) -> bool:
        word = value.strip().lower() if isinstance(value, str) else value
        if isinstance(word, bool) or word in ("true", "false"):
            return word in (True, "true")
        raise self.refusal(name, value)

    def _expected(self) -> str:
        return "True or False"


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(ArgumentType):
    """A number within limits, also as a text. ``whole``: an integer; ``above``: more than least."""

    least: float = 0
    most: float = math.inf
    whole: bool = True
    above: bool = False

    def _converted(self, name: str, value: object) -> float:
        found = value
        if isinstance(value, str):
            text = value.strip()
            if _NUMBER.fullmatch(text) and len(text) <= _DIGITS:
                found = float(text) if "." in text else int(text)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.refusal(name, value)
        if not abs(found) <= _LARGEST:  # too large for a float, or not a number
            raise self.refusal(name, value)
        within = self.least < found if self.above else self.least <= found
        if not within or found > self.most or (self.whole and not float(found).is_integer()):
            raise self.refusal(name, value)
        return int(found) if self.whole else found

    def _expected(self) -> str:
        kind = "an integer" if self.whole else "a number"
        low = f"above {self.least:g}" if self.above else f"from {self.least:g}"
        return f"{kind} {low}" + ("" if self.most == math.inf else f" to {self.most:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan(ArgumentType):
    """A duration. ``positive``: 0 is refused. ``words``: texts that are allowed in its place."""

    positive: bool = False
    words: tuple[str, ...] = ()

    def _converted(self, name: str, value: object) -> timedelta | str:
        word = value.strip().lower().replace("_", "-") if isinstance(value, str) else None
        if word in self.words:
            return str(word)
        found = _span(value)
        least = timedelta(0)
        if found is None or found < least or (self.positive and found == least):
            raise self.refusal(name, value, _no_unit(value))
        return found

    def _expected(self) -> str:
        kinds = (
            "seconds, a timedelta, or a text with units (milliseconds, seconds, minutes, hours, "
            "days; ms, s, min, h, d) such as '1 minute 30 seconds'"
        )
        words = "".join(f", or {each!r}" for each in self.words)
        return f"a duration {'above' if self.positive else 'from'} 0: {kinds}{words}"


def _span(value: object) -> timedelta | None:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.strip().lower().removeprefix("interval ").strip()
        if not _NUMBER.fullmatch(text):
            return _of_parts(text)
        value = float(text)
    if not isinstance(value, int | float) or not abs(value) <= _NEVER_ENDS.total_seconds():
        return None
    return timedelta(seconds=value)


def _of_parts(text: str) -> timedelta | None:
    total, at = timedelta(0), 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[2] not in _UNITS or float(part[1]) > _NEVER_ENDS.total_seconds():
            return None
        total, at = total + float(part[1]) * _UNITS[part[2]], part.end()
    return total if at and total <= _NEVER_ENDS else None


def _no_unit(value: object) -> str:
    """Say which word of a text is no unit, and the nearest unit."""
    text = value.lower().removeprefix("interval ") if isinstance(value, str) else ""
    for word in re.findall(r"[a-z]+", text):
        if word not in _UNITS:
            near = nearest(word, _UNITS)
            return f"there is no unit {word!r}" + (f", did you mean {near!r}?" if near else "")
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts(ArgumentType):
    """A list of texts: a text alone is no list of its letters. ``words``: all that are allowed."""

    words: tuple[str, ...] = ()
    kept: type[list[Any] | tuple[Any, ...]] = list

    def _converted(self, name: str, value: object) -> Sequence[Any]:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise self.refusal(name, value)
        for each in value:
            if not isinstance(each, str | int | float) or isinstance(each, bool):
                raise self.refusal(name, each, "each of them a text")
        known = Word(words=self.words)
        return self.kept(known.of(name, each) if self.words else each for each in value)

    def _expected(self) -> str:
        return "a list" + (f" of {', '.join(map(repr, self.words))}" if self.words else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnNames(ArgumentType):
    """A list of names of columns, each once. ``none``: an empty one, too; ``alone``: a text is one.

    The names are taken as they are, and kept as a tuple.
    """

    none: bool = False
    alone: bool = False

    def _converted(self, name: str, value: object) -> tuple[str, ...]:
        given = [value] if self.alone and isinstance(value, str) else value
        if not isinstance(given, Sequence) or isinstance(given, str | bytes):
            raise self.refusal(name, value)
        texts = [each for each in given if isinstance(each, str) and each]
        if len(set(texts)) != len(given) or not (texts or self.none):
            raise self.refusal(name, value)
        return tuple(texts)

    def _expected(self) -> str:
        return "a list of columns, each once, such as ['id']"


@dataclass(frozen=True, slots=True, kw_only=True)
class Texted(ArgumentType):
    """A mapping of names to texts; numbers and flags (YAML, native rendering) stay as they are."""

    def _converted(self, name: str, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise self.refusal(name, value)
        for key, each in value.items():
            if not isinstance(key, str) or not isinstance(each, str | int | float):
                raise self.refusal(f"{name}[{key!r}]", each)
        return dict(value)

    def _expected(self) -> str:
        return "a mapping of names to texts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ArgumentType):
    """A mapping of names to values of any kind, which may be passwords."""

    def _converted(self, name: str, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise self.stranger(name, value)
        return dict(value)

    def _expected(self) -> str:
        return "a mapping of names to values"


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the word that was probably meant; None where none is near."""
    return next(iter(difflib.get_close_matches(word, list(words), n=1)), None)


# --- annotations ----------------------------------------------------------------------------------
# What stands at a parameter or a field says its type: ``bool``, ``int``, ``str``, a mapping or list
# of texts, a ``Literal``; or an :class:`ArgumentType` in ``Annotated``.

Duration = Annotated[timedelta | float | str, TimeSpan()]
PositiveDuration = Annotated[timedelta | float | str, TimeSpan(positive=True)]
"""A duration as it may be given."""
Place = Annotated[str | os.PathLike[str], Verbatim(place=True)]
PlaceName = Annotated[str, Verbatim(place=True)]
"""A :data:`Place` that is text once it was checked."""
Topics = Annotated[str | Sequence[str], Text(several=True)]
Count = Annotated[int, Number(least=1)]
Key = Annotated[Sequence[str], ColumnNames()]
GuaranteeName = Annotated[str, Word(words=GUARANTEES)]
Span = Annotated[timedelta, TimeSpan()]
PositiveSpan = Annotated[timedelta, TimeSpan(positive=True)]
"""A duration as it is kept, once :func:`take_fields` has converted what was given."""

_PLAIN: Mapping[Any, ArgumentType] = {
    bool: Flag(),
    int: Number(),
    float: Number(whole=False),
    str: Text(),
    Mapping[str, Any]: Settings(),
    Mapping[str, str]: Texted(),
    Sequence[str]: Texts(),
    tuple[str, ...]: Texts(kept=tuple),
}


class Argument(NamedTuple):
    """What an annotation says: the type that comes first in it, and all others that are allowed."""

    type: ArgumentType
    others: tuple[Any, ...] = ()

    @property
    def may_be_none(self) -> bool:
        """Whether None is allowed."""
        return type(None) in self.others

    def of(self, name: str, value: object) -> Any:
        """Convert the value; see :meth:`ArgumentType.of`."""
        return None if value is None and self.may_be_none else self.type.of(name, value)

    @classmethod
    def stated(cls, annotation: Any) -> Argument:
        """Return what an annotation says; of a type that has no rule, any value is taken."""
        parts, origin = get_args(annotation), get_origin(annotation)
        if origin is Annotated:
            within = cls.stated(parts[0])
            said = [each for each in parts if isinstance(each, ArgumentType)]
            return within._replace(type=[within.type, *said][-1])
        if origin in (Union, UnionType):
            return cls(cls.stated(parts[0]).type, parts[1:])
        if origin is Literal:
            return cls(Word(words=parts))
        return cls(_PLAIN.get(annotation, Anything()), (type(None),) * (annotation is Any))


def arguments_of(made: Callable[..., Any]) -> Mapping[str, Argument]:
    """Return what stands at the named arguments of a function or a dataclass; it is read once."""
    return _arguments_of(unwrap(made))


@cache
def _arguments_of(made: Callable[..., Any]) -> Mapping[str, Argument]:
    hints = _hints(made)
    named = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return {
        name: Argument.stated(hints[name])
        for name, each in signature(made).parameters.items()
        if name in hints and each.kind in named
    }


class _Unseen:
    """What stands for a type that only type checkers import: of it any value is taken."""

    def __class_getitem__(cls, _of: object) -> type[_Unseen]:
        return cls


def _hints(made: Callable[..., Any]) -> Mapping[str, Any]:
    unseen: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(made, localns=unseen, include_extras=True)
        except NameError as error:
            unseen[str(error.name)] = _Unseen


def taken(made: Callable[..., Any], given: Mapping[str, object]) -> dict[str, Any]:
    """Convert what is given for arguments of a function by what stands at them.

    Raises:
        ConfigurationError: see :meth:`ArgumentType.of`.
    """
    types = arguments_of(made)
    return {name: types[name].of(name, value) for name, value in given.items()}


def checked(made: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let a function be called with what its arguments mean; see :func:`taken`."""

    @wraps(made)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        given = signature(made).bind(*args, **kwargs)
        given.arguments |= taken(made, given.arguments)
        return made(*given.args, **given.kwargs)

    return call


def take_fields(
    instance: object, put: Callable[[Any, str, Any], None] = object.__setattr__
) -> None:
    """Convert a frozen dataclass's fields to what they mean, in place; ``put`` sets one.

    No template renders them: a text is taken as it is.

    Raises:
        ConfigurationError: see :meth:`ArgumentType.of`.
    """
    for name, argument in arguments_of(type(instance)).items():
        if argument.type == Text():
            argument = argument._replace(type=Verbatim())
        put(instance, name, argument.of(name, getattr(instance, name)))


def spelled(span: timedelta) -> str:
    """Return a duration as Spark and people read it, in the largest unit that it is whole in."""
    whole = [each for each in ("day", "hour", "minute", "second") if not span % _UNITS[each]]
    unit = (whole or ["millisecond"])[0 if span else -1]
    count = span // _UNITS[unit]
    return f"{count} {unit}{'' if count == 1 else 's'}"


def milliseconds(span: timedelta) -> int:
    """Return a duration in milliseconds, as programs pass it on."""
    return round(span.total_seconds() * 1000)


def require_known(what: str, given: Iterable[str], names: Iterable[str]) -> None:
    """Refuse a given name that is none of ``names``.

    Raises:
        ConfigurationError: with the nearest name.
    """
    names = list(names)
    for name in given:
        if name not in names:
            near = nearest(name, names)
            guess = f" Did you mean {near!r}?" if near else f" It takes {', '.join(names)}."
            raise ConfigurationError(f"{what} has no {name!r}.{guess}")
