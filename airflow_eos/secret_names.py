"""The names of settings and options that are secrets, for all code that shows or logs them."""

from __future__ import annotations

import re

# Matches the name of a secret in lower case: librdkafka's or Java's, with dots, or obstore's, with
# underscores, with the store's prefix or without. The id of an access key is half of a secret; an
# endpoint or a file of a token is none.
_HIDDEN = (
    r"password|passwd|passphrase|secret|jaas\.config|oauthbearer\.config|token(?!\.endpoint)"
    r"|ssl\.key\.pem|ssl\.keystore\.key|(api|private)[_.-]?key"
    r"|(access|account|customer|encryption|master|sas)[_.]key"
)

_SPARKS_OWN = "(?i)secret|password|token|access[.]?key"
_SECRET, _PLACE = re.compile(_HIDDEN), re.compile(r"[_.-](file|path|location)$")


def is_secret(name: str) -> bool:
    """Whether the value of the setting or storage option ``name`` may not be shown."""
    lower = name.lower()
    return _SECRET.search(lower) is not None and _PLACE.search(lower) is None


def spark_redaction_regex(chosen: str | None = None) -> str:
    """Return ``spark.redaction.regex``: Spark's default, or ``chosen``, and our secrets' names.

    Spark's default knows passwords, but no private key that is given inline, as a certificate and
    its key in two files are.
    """
    return f"{chosen or _SPARKS_OWN}|(?i:{_HIDDEN})"
