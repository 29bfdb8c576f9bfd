"""Which settings of Kafka's clients are secrets, said once for whoever shows or logs settings."""

from __future__ import annotations

import re

# Finds the name of a secret, librdkafka's or Java's, in lower case.
_HIDDEN = (
    r"password|passphrase|secret|jaas\.config|oauthbearer\.config|token(?!\.endpoint)"
    r"|ssl\.key\.pem|ssl\.keystore\.key|private\.key\.pem"
)

_SPARKS_OWN = "(?i)secret|password|token|access[.]?key"
_SECRET = re.compile(_HIDDEN)


def is_secret(name: str) -> bool:
    """Whether the value of the setting ``name`` may not be shown."""
    return _SECRET.search(name.lower()) is not None


def spark_redaction_regex(chosen: str | None = None) -> str:
    """For ``spark.redaction.regex``: what Spark hides by default, or ``chosen``, and all of ours.

    Spark's default knows passwords, but no private key that is given inline, as a certificate and
    its key in two files are.
    """
    return f"{chosen or _SPARKS_OWN}|{_HIDDEN}"
