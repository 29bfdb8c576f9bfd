"""Which settings are secret, told by their names, once for all clients and stores.

Read by what masks Airflow's logs, by what Spark's UI leaves out, and by what keeps keys out of DAG
files. The pattern is one that Python and Java read alike.
"""

from __future__ import annotations

import re

SECRET_PATTERN = "|".join(
    (
        "password|passphrase|secret|jaas",
        # not the token's endpoint or file, which say where it is
        r"token(?![._](endpoint|file|url))",
        # Kafka: librdkafka's names, then those of Java's client inside Spark
        r"ssl\.(key|certificate|ca)\.pem|oauthbearer\.config|private\.key|keystore\.key",
        # object stores; the id of an access key is half of a secret
        r"(access|account|customer|master|service[._]account|sas)[._]?key|connection[._]string",
    )
)
_SECRET = re.compile(SECRET_PATTERN, re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether the value of this setting must not be shown."""
    return _SECRET.search(name) is not None
