"""What a lake's table is made as, where there is none."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from airflow_eos.core.arguments import take_fields


class NewTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a table is made as, where the catalog has none of that name.

    Attributes:
        columns: as Spark's DDL has them: ``"id BIGINT NOT NULL, at TIMESTAMP"``.
        partition_by: columns, or Iceberg's transforms of them: ``day(at)``, ``bucket(16, id)``,
            ``truncate(10, name)``, ``year``, ``month``, ``hour``.
        properties: of the table.
    """

    columns: str
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        take_fields(self, msgspec.structs.force_setattr)
