"""Who may do what: tokens, service accounts and their roles, as RBAC has them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from tests.cluster.k8s.objects import RefusedError

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


def verb_of(method: str, *, many: bool, watch: bool) -> str:
    """What RBAC calls a request: of a collection, or of one object."""
    if method == "DELETE":
        return "deletecollection" if many else "delete"
    return _VERBS.get(method, "watch" if watch else "list" if many else "get")


class Rights:
    """Nobody may do anything but who is an administrator, or whose role says so.

    Args:
        manifests: ServiceAccount, Role and RoleBinding.

    Attributes:
        administrator: a token.
    """

    def __init__(self, manifests: Iterable[dict[str, Any]]) -> None:
        self.administrator = uuid.uuid4().hex
        self._accounts: dict[str, str] = {}
        given = list(manifests)
        rules = {
            each["metadata"]["name"]: each["rules"] for each in given if each["kind"] == "Role"
        }
        self._rules: dict[str, list[dict[str, Any]]] = {
            each["metadata"]["name"]: [] for each in given if each["kind"] == "ServiceAccount"
        }
        for each in given:
            if each["kind"] == "RoleBinding":
                for subject in each["subjects"]:
                    self._rules[subject["name"]] += rules[each["roleRef"]["name"]]

    def token_of(self, account: str) -> str:
        """A token of a service account; ``default`` is there, and may do nothing."""
        if account not in self._rules and account != "default":
            raise RefusedError(403, "Forbidden", f'serviceaccount "{account}" not found')
        token = uuid.uuid4().hex
        self._accounts[token] = account
        return token

    def require(self, header: str | None, verb: str, group: str, plural: str) -> None:
        """Refuse who is unknown (401), and what the role does not allow (403)."""
        token = (header or "").removeprefix("Bearer ")
        if token == self.administrator:
            return
        if token not in self._accounts:
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        account = self._accounts[token]
        if not any(
            group in rule["apiGroups"] and plural in rule["resources"] and verb in rule["verbs"]
            for rule in self._rules.get(account, ())
        ):
            raise RefusedError(
                403,
                "Forbidden",
                f'{plural} is forbidden: User "system:serviceaccount:default:{account}" cannot '
                f'{verb} resource "{plural}" in API group "{group}" in the namespace "default"',
            )
