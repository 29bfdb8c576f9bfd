"""Which settings and options are secrets, said once for whoever shows, logs or refuses them."""

from __future__ import annotations

import re

# Finds the name of a secret in lower case: librdkafka's or Java's, with dots, or obstore's, with
# underscores, the store's prefix or none. The id of an access key is half of a secret; the place
# of a token, an endpoint or a file, is none.
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
    """For ``spark.redaction.regex``: what Spark hides by default, or ``chosen``, and all of ours.

    Spark's default knows passwords, but no private key that is given inline, as a certificate and
    its key in two files are.
    """
    return f"{chosen or _SPARKS_OWN}|{_HIDDEN}"
