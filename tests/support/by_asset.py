"""What Airflow has for a task by asset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow.sdk import Asset


class ByAsset(Mapping[Asset, Any]):
    """For one asset; no ``dict``, since an asset of Airflow 3.1 has no hash."""

    def __init__(self, asset: Asset, value: Any) -> None:
        self._asset = asset
        self._value = value

    def __getitem__(self, asset: Asset) -> Any:
        if asset != self._asset:
            raise KeyError(asset)
        return self._value

    def __iter__(self) -> Iterator[Asset]:
        return iter((self._asset,))

    def __len__(self) -> int:
        return 1
