"""Airflow's own connections of object stores as options for the checkpoint's store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_eos.errors import ConfigurationError
from airflow_eos.hooks.store_options import StoreConnection
from airflow_eos.secret_names import is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_eos.checkpoint import CheckpointStore


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
