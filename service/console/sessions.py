"""Sessions: what a browser holds instead of an API key, and how forms are known to be ours.

The cookie carries the tenant's id and 256 random bits; stored is their SHA-256, under the tenant's own row-level
security. Whether a session holds is asked in each request's own transaction, together with its key (`service/auth.py`).
"""

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal
from uuid import UUID

from litestar.datastructures import Cookie

from service.auth import Credential
from tenancy import TenantTransaction, load_sql

SQL = load_sql(__file__)
LIFETIME: Final = timedelta(hours=12)
NAME: Final = "tenantry_console"
# Given out with the form to sign in, before there is a session.
FORM_NAME: Final = "tenantry_console_form"
LAPSED_A_TIME: Final = 100
_TOKEN_BYTES: Final = 32
_COOKIE: Final = re.compile(r"([0-9a-f]{32})\.([A-Za-z0-9_-]{43})", re.ASCII)
_FORM_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_PURPOSE: Final = b"tenantry console: forms"


@dataclass(frozen=True, slots=True)
class Session:
    """What a cookie claims; whether it holds, only the database can tell."""

    tenant_id: UUID
    token: bytes = field(repr=False)

    @property
    def token_hash(self) -> bytes:
        """The SHA-256 under which the session is stored; 256 random bits need no slow hash."""
        return hashlib.sha256(self.token).digest()

    @property
    def credential(self) -> Credential:
        """Return what a transaction is opened with."""
        return Credential(self.tenant_id, session_hash=self.token_hash)

    @property
    def form_token(self) -> str:
        """The secret that each of the session's forms carries; only pages of this session can know it."""
        return _text(hmac.digest(self.token, _PURPOSE, "sha256"))

    @property
    def cookie_value(self) -> str:
        """Return what the cookie holds."""
        return f"{self.tenant_id.hex}.{_text(self.token)}"


async def open_session(tx: TenantTransaction, key_id: UUID) -> Session:
    """Open a session of a key, under a token that nobody has seen, and clear away some that ran out."""
    session = Session(tx.tenant_id, secrets.token_bytes(_TOKEN_BYTES))
    await tx.execute(SQL["drop_lapsed"], limit=LAPSED_A_TIME)
    await tx.execute(SQL["open"], token_hash=session.token_hash, key_id=key_id, lifetime=LIFETIME)
    return session


async def close_session(tx: TenantTransaction, session: Session) -> None:
    """End a session from this transaction's commit on; one that is not there has ended already."""
    await tx.execute(SQL["close"], token_hash=session.token_hash)


def read_cookie(cookies: Mapping[str, str], *, secure: bool) -> Session | None:
    """Return what the request's cookie claims; None for anything but what we write."""
    match = _COOKIE.fullmatch(cookies.get(_name(NAME, secure=secure), ""))
    if match is None:
        return None
    session = Session(UUID(hex=match[1]), urlsafe_b64decode(match[2] + "="))
    return session if session.cookie_value == match[0] else None


def session_cookie(session: Session | None, *, secure: bool) -> Cookie:
    """Return the cookie that keeps a session; without one, the cookie that makes the browser forget it.

    Lax and not Strict, so that a link to a run in a message opens the run; what changes things are forms with a token.
    """
    value = session.cookie_value if session is not None else ""
    age_s = int(LIFETIME.total_seconds()) if session is not None else 0
    return _cookie(NAME, value, age_s=age_s, same_site="lax", secure=secure)


def read_form_cookie(cookies: Mapping[str, str], *, secure: bool) -> str | None:
    """Return the token that the form to sign in was given out with."""
    found = cookies.get(_name(FORM_NAME, secure=secure), "")
    return found if _FORM_TOKEN.fullmatch(found) else None


def form_cookie(token: str | None, *, secure: bool) -> Cookie:
    """Return the cookie that goes with a form to sign in; without a token, that makes the browser forget it."""
    return _cookie(FORM_NAME, token or "", age_s=3600 if token else 0, same_site="strict", secure=secure)


def new_form_token() -> str:
    """Draw a token for a form to sign in."""
    return _text(secrets.token_bytes(_TOKEN_BYTES))


def _name(name: str, *, secure: bool) -> str:
    # A browser takes this prefix only over TLS and only from this very host, so no neighbour can plant a session.
    return f"__Host-{name}" if secure else name


def _cookie(name: str, value: str, *, age_s: int, same_site: Literal["lax", "strict"], secure: bool) -> Cookie:
    return Cookie(
        key=_name(name, secure=secure),
        value=value,
        path="/",
        max_age=age_s,
        httponly=True,
        secure=secure,
        samesite=same_site,
    )


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
