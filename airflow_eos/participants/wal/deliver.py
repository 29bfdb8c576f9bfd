"""The callable that delivers kept rows, as a user names it: ``package.module:function``.

It is called with ``(token, rows)``, and with ``reach=…`` where that was given. The token is never
used for other rows. It may come again, after a crash and from another process at the same time:
the callable is exact if it remembers tokens for ever, in one atomic step with its effect, and
passes over one that it knows. Else rows come at least once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_eos.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

Deliver = Callable[[str, "pa.Table"], object]

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)


def check_deliver(name: str) -> str:
    """Return ``name`` if it may be one of a callable.

    Raises:
        ConfigurationError: it may not.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"deliver {name!r}: expected 'package.module:function', where every process that "
            "commits can import it: the driver, and whoever runs a recovery."
        )
    return name


def loaded(name: str, reach: Any = None) -> Deliver:
    """The callable of that name, given ``reach`` where there is one.

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
