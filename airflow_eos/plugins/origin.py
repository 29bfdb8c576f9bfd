"""Whether a request that changes something comes from the page itself, and from who was asked.

A browser sends the user's cookie along with whatever another site makes it send. So such a request
needs three things that no other site can have: a header of ours, which a form cannot set and which
makes a browser ask before it crosses sites; the page's own origin; and in the header a token that
was signed for this user, this pipeline and this button, a few minutes ago.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import HTTPException
from itsdangerous import BadSignature, SignatureExpired, URLSafeTimedSerializer

if TYPE_CHECKING:
    from collections.abc import Mapping

HEADER = "x-eos-token"
MAX_AGE_S = 600


class Tokens:
    """Signs and checks confirmations.

    Args:
        secret: Airflow's own, the same in every API server.
    """

    def __init__(self, secret: str) -> None:
        self._serializer = URLSafeTimedSerializer(secret, salt="airflow_eos.page")

    def make(self, user: str, pipeline: str, action: str) -> str:
        """A token for one confirmation."""
        return str(self._serializer.dumps([user, pipeline, action, uuid.uuid4().hex]))

    def nonce(self, token: str, user: str, pipeline: str, action: str) -> str:
        """What tells this confirmation from others.

        Raises:
            HTTPException: 403, it is none, too old, or of something else.
        """
        try:
            told = self._serializer.loads(token, max_age=MAX_AGE_S)
        except SignatureExpired:
            raise HTTPException(403, "The confirmation is too old: ask again.") from None
        except BadSignature:
            raise HTTPException(403, f"{HEADER} holds no confirmation of this page.") from None
        if told[:3] != [user, pipeline, action]:
            raise HTTPException(
                403, "The confirmation is of another user, pipeline, button or driver."
            )
        return str(told[3])


def require_own(headers: Mapping[str, str], own: set[str]) -> None:
    """Refuse what another site has made the browser send.

    Args:
        headers: of the request, by lower-case names.
        own: hosts, with ports, under which this server is known.

    Raises:
        HTTPException: 403.
    """
    site = headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        raise HTTPException(403, f"The request comes from another place ({site}).")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc not in own:
        raise HTTPException(403, f"The request comes from another origin ({origin}).")
    if HEADER not in headers:
        raise HTTPException(403, f"The request has no {HEADER}: press the button on the page.")
