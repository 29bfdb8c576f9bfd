"""Airflow's own connections of object stores as options for the checkpoint's store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_eos.errors import ConfigurationError
from airflow_eos.secret_names import is_secret

if TYPE_CHECKING:
    from airflow_eos.checkpoint import CheckpointStore

_GOOGLE_PREFIX = "extra__google_cloud_platform__"  # of connections that Airflow 2 has made


@dataclass(frozen=True, slots=True)
class StoreConnection:
    """What a connection says; ``name`` is its id, for messages."""

    name: str
    conn_type: str
    host: str | None = None
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def options(self) -> dict[str, str]:
        """Return obstore's options; an empty connection leaves everything to the environment.

        Raises:
            ConfigurationError: a type that is no object store's, or a way to log in that only
                Airflow's own hooks know.
        """
        translate = _TYPES.get(self.conn_type)
        if translate is None:
            raise ConfigurationError(
                f"Connection {self.name!r} is of type {self.conn_type!r}; storage_conn_id expects "
                f"one of {', '.join(_TYPES)}."
            )
        return {key: str(value) for key, value in translate(self).items() if value}

    def refuse(self, extra: Mapping[str, Any], *names: str) -> None:
        """Refuse a way to log in that obstore does not have."""
        found = [name for name in names if extra.get(name)]
        if found:
            raise ConfigurationError(
                f"Connection {self.name!r} has {', '.join(found)} in its extra, which obstore "
                "cannot use. Give keys, or leave the connection's fields empty and give the role "
                "to the machine: then the environment decides."
            )


def _aws(connection: StoreConnection) -> dict[str, Any]:
    extra = connection.extra
    connection.refuse(extra, "role_arn", "profile_name", "assume_role_method")
    of_s3 = (extra.get("service_config") or {}).get("s3") or {}
    endpoint = of_s3.get("endpoint_url") or extra.get("endpoint_url")
    return {
        "aws_access_key_id": connection.login or extra.get("aws_access_key_id"),
        "aws_secret_access_key": connection.password or extra.get("aws_secret_access_key"),
        "aws_session_token": extra.get("aws_session_token"),
        "aws_region": extra.get("region_name"),
        "aws_endpoint": endpoint,
        # who writes http:// has asked for it; obstore wants to be told twice
        "aws_allow_http": "true" if str(endpoint).startswith("http://") else None,
    }


def _google(connection: StoreConnection) -> dict[str, Any]:
    extra = {key.removeprefix(_GOOGLE_PREFIX): value for key, value in connection.extra.items()}
    connection.refuse(
        extra, "key_secret_name", "credential_config_file", "impersonation_chain", "idp_issuer_url"
    )
    key = extra.get("keyfile_dict")
    return {
        "google_service_account_key": json.dumps(key) if isinstance(key, dict) else key,
        "google_service_account": extra.get("key_path"),
    }


def _azure(connection: StoreConnection) -> dict[str, Any]:
    extra = connection.extra
    connection.refuse(
        extra,
        "connection_string",
        "client_secret_auth_config",
        "managed_identity_client_id",
        "workload_identity_tenant_id",
    )
    host = connection.host or ""
    named = host.removeprefix("https://").partition(".")[0] or None
    shared = {"azure_storage_sas_key": _query(extra.get("sas_token"))}
    if extra.get("tenant_id"):  # then login and password are an application's
        return shared | {
            "azure_storage_account_name": named,
            "azure_storage_tenant_id": extra["tenant_id"],
            "azure_storage_client_id": connection.login,
            "azure_storage_client_secret": connection.password,
        }
    return shared | {
        "azure_storage_account_name": connection.login or named,
        "azure_storage_account_key": connection.password or extra.get("shared_access_key"),
    }


def _query(sas_token: str | None) -> str | None:
    """Airflow also takes a token as the end of a URL."""
    return sas_token.rpartition("?")[2] if sas_token else None


_TYPES: dict[str, Callable[[StoreConnection], dict[str, Any]]] = {
    "aws": _aws,
    "google_cloud_platform": _google,
    "wasb": _azure,
}
STORES = frozenset(_TYPES)
"""Types of connections that lead to an object store."""


# --- store ----------------------------------------------------------------------------------------
# Airflow's own connections of object stores as options for the checkpoint's store.


class CheckpointStoreHook(BaseHook):
    """Gives the options that open a checkpoint: a connection's, and a DAG's own on top.

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
        """Return the options, the connection's secrets already masked in every log.

        Raises:
            ConfigurationError: a connection that cannot work, or a secret in ``storage_options``.
        """
        if self.storage_conn_id is None:
            return self._joined({})
        return self._joined(options_of(self.get_connection(self.storage_conn_id)))

    async def aoptions(self) -> dict[str, str]:
        """Return :meth:`options` inside a trigger, whose event loop may not be blocked."""
        if self.storage_conn_id is None:
            return self._joined({})
        return self._joined(options_of(await self.aget_connection(self.storage_conn_id)))

    def open(self, location: str) -> CheckpointStore:
        """Open the checkpoint at ``location`` with :meth:`options`."""
        from airflow_eos.checkpoint import CheckpointStore

        return CheckpointStore.open(location, storage_options=self.options())

    async def aopen(self, location: str) -> CheckpointStore:
        """Return :meth:`open` inside a trigger."""
        from airflow_eos.checkpoint import CheckpointStore

        return CheckpointStore.open(location, storage_options=await self.aoptions())

    def get_conn(self) -> dict[str, str]:
        """Return :meth:`options`: there is no long-lived client to hand out."""
        return self.options()

    def _joined(self, connection: dict[str, str]) -> dict[str, str]:
        secrets = sorted(filter(is_secret, self.storage_options))
        if secrets:
            raise ConfigurationError(
                f"storage_options has {', '.join(secrets)}, which would stand in the DAG file. Put "
                "it into a connection of type aws, google_cloud_platform or wasb, and give its id "
                "as storage_conn_id."
            )
        return connection | self.storage_options


def options_of(connection: Any) -> dict[str, str]:
    """Return a connection's options, its secrets masked in every log (ConfigurationError)."""
    options = StoreConnection(
        connection.conn_id,
        connection.conn_type,
        host=connection.host,
        login=connection.login,
        password=connection.password,
        extra=json.loads(connection.extra or "{}"),
    ).options()
    for name, value in options.items():
        if is_secret(name):
            mask_secret(value)
    return options
