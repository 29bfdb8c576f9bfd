"""Hooks that read the connections of the checkpoint's object store and of other participants."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow.sdk.log import mask_secret

from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks.answers import AnsweredHook
from airflow_eos.secret_names import is_secret

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from airflow_eos.core.checkpoint import CheckpointStore


def _refuse(connection: Connection, extra: Mapping[str, Any], *names: str) -> None:
    """Refuse a connection whose extra has a way to log in that obstore does not have."""
    found = [name for name in names if extra.get(name)]
    if found:
        raise ConfigurationError(
            f"Connection {connection.conn_id!r} has {', '.join(found)} in its extra, which obstore "
            "cannot use. Give keys, or leave the connection's fields empty and give the role "
            "to the machine: then the environment decides."
        )


def _aws(connection: Connection, extra: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(connection, extra, "role_arn", "profile_name", "assume_role_method", "session_kwargs")
    of_s3 = (extra.get("service_config") or {}).get("s3") or {}
    endpoint = of_s3.get("endpoint_url") or extra.get("endpoint_url")
    return {
        "aws_access_key_id": connection.login or extra.get("aws_access_key_id"),
        "aws_secret_access_key": connection.password or extra.get("aws_secret_access_key"),
        "aws_session_token": extra.get("aws_session_token"),
        "aws_region": extra.get("region_name"),
        "aws_endpoint": endpoint,
        # an endpoint of http:// asks for plain HTTP; obstore needs this option, too
        "aws_allow_http": "true" if str(endpoint).startswith("http://") else None,
    }


def _google(connection: Connection, extra: Mapping[str, Any]) -> dict[str, Any]:
    refused = ("key_secret_name", "credential_config_file", "impersonation_chain", "idp_issuer_url")
    _refuse(connection, extra, *refused)
    key = extra.get("keyfile_dict")
    return {
        "google_service_account_key": json.dumps(key) if isinstance(key, dict) else key,
        "google_service_account": extra.get("key_path"),
    }


def _azure(connection: Connection, extra: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(
        connection,
        extra,
        "connection_string",
        "client_secret_auth_config",
        "managed_identity_client_id",
        "workload_identity_tenant_id",
    )
    host = connection.host or ""
    named = host.removeprefix("https://").partition(".")[0] or None
    # Airflow also takes a token as the end of a URL.
    shared = {"azure_storage_sas_key": (extra.get("sas_token") or "").rpartition("?")[2]}
    if extra.get("tenant_id"):  # then login and password are an application's
        return shared | {
            "azure_storage_account_name": named,
            "azure_storage_tenant_id": extra["tenant_id"],
            "azure_storage_client_id": connection.login,
            "azure_storage_client_secret": connection.password,
        }
    return shared | {
        "azure_storage_account_name": connection.login or named,
        "azure_storage_account_key": connection.password
        or extra.get("shared_access_key")
        or extra.get("account_key"),
    }


_TYPES: dict[str, Callable[[Connection, Mapping[str, Any]], dict[str, Any]]] = {
    "aws": _aws,
    "google_cloud_platform": _google,
    "wasb": _azure,
}
STORES = frozenset(_TYPES)
"""The types of connections to an object store."""


class CheckpointStoreHook(AnsweredHook):
    """Returns the options that open a checkpoint: a connection's, overridden by the DAG's own.

    Args:
        storage_conn_id: a connection of type ``aws``, ``google_cloud_platform`` or ``wasb``; None
            leaves the log-in to the environment.
        storage_options: obstore's configuration keys. They stand in a DAG file, so no secrets.
    """

    conn_name_attr = "storage_conn_id"
    hook_name = "Checkpoint store"

    def __init__(
        self,
        storage_conn_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.storage_conn_id = storage_conn_id
        self.storage_options = dict(storage_options or {})

    def options(self) -> dict[str, str]:
        """Return the options; the connection's secrets are masked in every log before.

        Raises:
            ConfigurationError: a connection that cannot work, or a secret in ``storage_options``.
        """
        conn_id = self.storage_conn_id
        return self._joined(None if conn_id is None else self.get_connection(conn_id))

    async def aoptions(self) -> dict[str, str]:
        """Return :meth:`options` inside a trigger, whose event loop may not be blocked."""
        conn_id = self.storage_conn_id
        return self._joined(None if conn_id is None else await self.aget_connection(conn_id))

    def open(self, location: str) -> CheckpointStore:
        """Open the checkpoint at ``location`` with :meth:`options`."""
        from airflow_eos.core.checkpoint import CheckpointStore

        return CheckpointStore.open(location, storage_options=self.options())

    async def aopen(self, location: str) -> CheckpointStore:
        """Return :meth:`open` inside a trigger."""
        from airflow_eos.core.checkpoint import CheckpointStore

        return CheckpointStore.open(location, storage_options=await self.aoptions())

    def get_conn(self) -> dict[str, str]:
        """Return :meth:`options`: there is no long-lived client to hand out."""
        return self.options()

    def _joined(self, connection: Connection | None) -> dict[str, str]:
        options = {} if connection is None else options_of(connection)
        secrets = sorted(filter(is_secret, self.storage_options))
        if secrets:
            raise ConfigurationError(
                f"storage_options has {', '.join(secrets)}, which would stand in the DAG file. Put "
                "it into a connection of type aws, google_cloud_platform or wasb, and give its id "
                "as storage_conn_id."
            )
        return options | self.storage_options


def checkpoint_of(task: Any) -> CheckpointStore:
    """Open the checkpoint of an operator, with its connection as it is now."""
    hook = CheckpointStoreHook(task.storage_conn_id, task.storage_options)
    return hook.open(task.checkpoint_location)


def options_of(connection: Connection) -> dict[str, str]:
    """Return a connection's options for obstore, with the secrets masked in every log.

    An empty connection leaves everything to the environment.

    Raises:
        ConfigurationError: a type that is no object store's, or a way to log in that only
            Airflow's own hooks know.
    """
    translate = _TYPES.get(connection.conn_type or "")
    if translate is None:
        raise ConfigurationError(
            f"Connection {connection.conn_id!r} is of type {connection.conn_type!r}; "
            f"storage_conn_id expects one of {', '.join(_TYPES)}."
        )
    prefix = f"extra__{connection.conn_type}__"  # of connections that Airflow 2 has made
    extra = {key.removeprefix(prefix): value for key, value in extra_of(connection).items()}
    try:
        found = {key: value for key, value in translate(connection, extra).items() if value}
    except AttributeError:  # a text where it has an object, or the other way round
        found = {"extra": None}
    if odd := [key for key, value in found.items() if not isinstance(value, str | int)]:
        raise ConfigurationError(
            f"Connection {connection.conn_id!r} says {', '.join(odd)} in another form than a text, "
            "or than Airflow's own hooks read it."
        )
    options = {key: str(value) for key, value in found.items()}
    mask_secrets(options)
    return options


def extra_of(connection: Any) -> dict[str, Any]:
    """Return the extra of a connection, masked as Airflow masks it; refuse one that is no object.

    Airflow takes an extra that it cannot read for an empty one: a log-in by the machine's role, a
    connection without TLS, a driver on the worker.

    Raises:
        ConfigurationError: the extra is no JSON object.
    """
    try:
        is_read = isinstance(json.loads(connection.extra or "{}"), dict)
    except ValueError:
        is_read = False
    if not is_read:
        raise ConfigurationError(
            f"Connection {connection.conn_id!r}: its extra is no JSON object, so what it says is "
            "not known. Expected one such as {}."
        )
    found: dict[str, Any] = connection.extra_dejson
    return found


_PASSWORD = re.compile(
    r"(?<!hdfs)://[^/?#\s@:]*:(?=((?:(?!://)\S)+)@)((?:(?!://)[^\s@])+)@", re.ASCII
)
"""The pattern of the password in a URL, as it is there: up to the last @, and to the first.

Where it is not quoted, a slash, a question mark or an @ is a part of it for some clients. The port
of a name node is none.
"""
_NAMED = re.compile(
    r"(?<![\w.-])([\w.-]+)(?:[\"']\s*:|\s*=)\s*(?='([^']+)|\"([^\"]+)|([^'\"&;,\s]+))", re.ASCII
)
"""The pattern of name and value in a text: option, database DSN, JDBC URL, JAAS line, JSON."""


def mask_secrets(value: object, name: str = "") -> None:
    """Mask in every log each value with a secret's name, and passwords of URLs; however deep.

    Airflow's masker knows passwords by their names; clients also keep keys and JAAS lines.
    """
    if isinstance(value, Mapping):
        for key, each in value.items():
            mask_secrets(each, str(key))
    elif isinstance(value, list | tuple):
        for before, each in zip(("", *value), value, strict=False):
            is_option = isinstance(before, str) and before.startswith("-") and "=" not in before
            mask_secrets(each, before if is_option else name)
    elif isinstance(value, str) and value:
        if is_secret(name):
            mask_secret(value)
        for password in dict.fromkeys(chain(*_PASSWORD.findall(value))):
            mask_secret(password)
        for named in _NAMED.finditer(value):
            if is_secret(named[1]):
                mask_secret(named[2] or named[3] or named[4])


_LIBPQ = {"host": "host", "port": "port", "user": "login", "password": "password"}


class ParticipantsHook(AnsweredHook):
    """Reads a connection for each participant; Airflow masks its secrets in every log.

    =============  ===============================================================================
    type           what the participant is told
    =============  ===============================================================================
    ``postgres``   libpq's parameters: host, port, user, password, dbname, and the extra's
    ``mysql``      host, port, user, password, database, and the extra's
    stores         ``storage_options``, as the checkpoint's (aws, google_cloud_platform, wasb)
    ``redis``      a URL: ``redis://…``, or ``rediss://…`` where the extra's ``ssl`` is set
    others         the extra, as it is
    =============  ===============================================================================

    Args:
        conn_ids: connection by the participant's name, or by its kind.
    """

    def __init__(self, conn_ids: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.conn_ids = dict(conn_ids or {})

    def reach(self) -> dict[str, Any]:
        """Return the connections' settings by name or kind (ConfigurationError: one has none)."""
        return {
            name: settings_of(self.get_connection(each)) for name, each in self.conn_ids.items()
        }

    async def areach(self) -> dict[str, Any]:
        """Return :meth:`reach` inside a trigger, whose event loop may not be blocked."""
        return {
            name: settings_of(await self.aget_connection(each))
            for name, each in self.conn_ids.items()
        }

    def get_conn(self) -> dict[str, Any]:
        """Return :meth:`reach`: there is no long-lived client to hand out."""
        return self.reach()


def settings_of(connection: Connection) -> Any:
    """Return the settings with which a participant connects, from an Airflow connection.

    Raises:
        ConfigurationError: the connection has neither a host nor an extra.
    """
    if connection.conn_type in STORES:
        return {"storage_options": options_of(connection)}
    extra = extra_of(connection)
    mask_secrets(extra)
    if connection.conn_type == "redis":
        url = _redis_url(connection, extra)
        mask_secrets(url)  # the quoted password is another text than the plain one
        return url
    if connection.conn_type in ("postgres", "mysql"):
        database = {"postgres": "dbname", "mysql": "database"}[connection.conn_type]
        given = {name: getattr(connection, ours) for name, ours in _LIBPQ.items()}
        given[database] = connection.schema
        extra = {**{name: value for name, value in given.items() if value}, **extra}
    if not extra:
        raise ConfigurationError(
            f"Connection {connection.conn_id!r} says nothing of how to reach a participant: "
            "expected a host, or a JSON object in its extra."
        )
    return extra


def _redis_url(connection: Connection, extra: Mapping[str, Any]) -> str:
    from urllib.parse import quote

    scheme = "rediss" if extra.get("ssl") else "redis"
    login, password = (
        quote(each or "", safe="") for each in (connection.login, connection.password)
    )
    secret = f"{login}:{password}@" if password else ""
    where = f"{connection.host or 'localhost'}:{connection.port or 6379}"
    return f"{scheme}://{secret}{where}/{extra.get('db', connection.schema or 0)}"
