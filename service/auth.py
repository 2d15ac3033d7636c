"""Who is asking: API keys, JWTs and sessions of the console, and what they may do.

A credential names its tenant, the request's transaction is bound to that tenant, and the first statement of that very
transaction decides whether the credential holds. Nothing is cached, so a revocation counts from its commit on.
"""

import hashlib
import hmac
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from service import keys
from service.problems import ProblemError, unauthorized
from service.tokens import TokenVerifier
from tenancy import Row, TenantTransaction, load_sql

SQL = load_sql(__file__)
_NOBODY: Final = bytes(hashlib.sha256().digest_size)


class Scope(StrEnum):
    """What a credential may be allowed to do."""

    RUNS_READ = "runs:read"
    RUNS_WRITE = "runs:write"
    SIGNALS_WRITE = "signals:write"
    SCHEDULES_WRITE = "schedules:write"
    WEBHOOKS_WRITE = "webhooks:write"
    KEYS_ADMIN = "keys:admin"


@dataclass(frozen=True, slots=True)
class Credential:
    """What a request claims to be.

    `key` for an API key, `scopes` for a token whose signature holds, `session_hash` for a session of the console: the
    SHA-256 of its token.
    """

    tenant_id: UUID
    key: keys.ApiKey | None = None
    scopes: frozenset[str] = frozenset()
    session_hash: bytes | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request turned out to come from; `key_id` where that is a key, names where it is a session."""

    tenant_id: UUID
    scopes: frozenset[str]
    key_id: UUID | None = None
    key_name: str = ""
    tenant_name: str = ""

    def require(self, scope: Scope | None) -> None:
        """Refuse with 403 unless the caller has the scope; None asks for nothing."""
        if scope is not None and scope not in self.scopes:
            raise ProblemError("forbidden", f"This needs the scope {scope}.")


async def read_credential(authorization: str | None, tokens: TokenVerifier | None) -> Credential:
    """Read the `Authorization` header, without the database.

    Raises:
        ProblemError: 401 for anything but a well-formed key or, where tokens are configured, a valid token.
    """
    scheme, _, text = (authorization or "").partition(" ")
    text = text.strip()
    if scheme.lower() != "bearer" or not text:
        raise unauthorized()
    if text.startswith(keys.PREFIX):
        key = keys.parse(text)
        if key is None:
            raise unauthorized()
        return Credential(key.tenant_id, key)
    if tokens is None:
        raise unauthorized()
    token = await tokens.verify(text)
    return Credential(token.tenant_id, scopes=token.scopes)


async def authenticate(credential: Credential, tx: TenantTransaction) -> Caller:
    """Look the credential up in the tenant's own transaction, which is bound to the tenant it names.

    Raises:
        ProblemError: 401 when it does not hold, 403 `tenant_suspended` when it does and its tenant is suspended.
    """
    if credential.session_hash is not None:
        row = await tx.fetch_one(SQL["session"], token_hash=credential.session_hash)
        caller = _caller_of_session(row, credential.tenant_id)
    elif credential.key is not None:
        row = await tx.fetch_one(SQL["key"], key_id=credential.key.key_id)
        caller = Caller(credential.tenant_id, _scopes_of(credential.key, row), credential.key.key_id)
    else:
        row = await tx.fetch_one(SQL["tenant"])
        caller = Caller(credential.tenant_id, credential.scopes)
    if row is None or row["tenant_status"] == "deleting":
        raise unauthorized()
    if row["tenant_status"] != "active":
        raise ProblemError("tenant_suspended", "The tenant is suspended.")
    if caller.key_id is not None and row["is_use_unrecorded"]:
        await tx.execute(SQL["record_use"], key_id=caller.key_id)
    return caller


def is_operator(authorization: str | None, operator_token: str) -> bool:
    """Compare a bearer token with the operator's, in constant time."""
    scheme, _, text = (authorization or "").partition(" ")
    given = hashlib.sha256(text.strip().encode()).digest()
    wanted = hashlib.sha256(operator_token.encode()).digest()
    return hmac.compare_digest(given, wanted) and scheme.lower() == "bearer"


def _caller_of_session(row: Row | None, tenant_id: UUID) -> Caller:
    if row is None or not row["is_usable"]:
        raise unauthorized()
    return Caller(tenant_id, frozenset(row["scopes"]), row["key_id"], row["key_name"], row["tenant_name"])


def _scopes_of(key: keys.ApiKey, row: Row | None) -> frozenset[str]:
    # Without a row it is compared with nobody's hash, so that a key that never was takes as long as a wrong one.
    holds = key.matches(bytes(row["secret_hash"]) if row is not None else _NOBODY)
    if row is None or not holds or not row["is_usable"]:
        raise unauthorized()
    return frozenset(row["scopes"])
