"""JSON Web Tokens: signed by the issuer's keys, for this audience, with the tenant's id in one claim.

The issuer's keys are fetched when they are first needed and again when a token names one that is not known, but at most
every half minute: made-up key ids cannot make this process hammer the issuer.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import httpx
import jwt

from service.problems import unauthorized, unavailable
from service.settings import Settings

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
REFETCH_AFTER_S: Final = 30.0
STALE_AFTER_S: Final = 600.0
FETCH_TIMEOUT_S: Final = 5.0
MAX_TOKEN_LENGTH: Final = 16_384
LEEWAY_S: Final = 10
_log = logging.getLogger("tenantry.tokens")


@dataclass(frozen=True, slots=True)
class Token:
    """What a token that holds says."""

    tenant_id: UUID
    scopes: frozenset[str]


class KeySet:
    """The issuer's public keys by their id."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._tried_at = -STALE_AFTER_S
        self._fetched_at = -STALE_AFTER_S
        self._lock = asyncio.Lock()

    async def key(self, key_id: str | None) -> jwt.PyJWK | None:
        """Return the key of this id; without an id, the only key there is.

        Raises:
            ProblemError: 503 when the keys were never had and the issuer cannot be reached.
        """
        if key_id not in self._keys or time.monotonic() - self._fetched_at > STALE_AFTER_S:
            await self._refresh()
        if not self._keys:
            raise unavailable("The keys of the token's issuer cannot be had at the moment.")
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    async def _refresh(self) -> None:
        async with self._lock:
            if time.monotonic() - self._tried_at < REFETCH_AFTER_S:
                return
            self._tried_at = time.monotonic()
            try:
                async with httpx.AsyncClient(timeout=FETCH_TIMEOUT_S) as client:
                    answer = (await client.get(self._url)).raise_for_status()
                fetched = jwt.PyJWKSet.from_dict(answer.json())
            except (httpx.HTTPError, ValueError, jwt.PyJWTError) as error:
                _log.warning("tokens.keys_unreachable", extra={"error": type(error).__name__})
                return
            # Keys for encryption are none of ours; one without an id is found by being the only one.
            self._keys = {key.key_id: key for key in fetched.keys if key.public_key_use in {None, "sig"}}
            self._fetched_at = time.monotonic()


class TokenVerifier:
    """Checks tokens of one issuer."""

    def __init__(self, keys: KeySet, *, issuer: str, audience: str, tenant_claim: str) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._tenant_claim = tenant_claim

    @classmethod
    def from_settings(cls, settings: Settings) -> "TokenVerifier | None":
        """Return the verifier that the settings describe; None when tokens are not configured."""
        if settings.jwt_jwks_url is None or settings.jwt_issuer is None or settings.jwt_audience is None:
            return None
        return cls(
            KeySet(settings.jwt_jwks_url),
            issuer=settings.jwt_issuer,
            audience=settings.jwt_audience,
            tenant_claim=settings.jwt_tenant_claim,
        )

    async def verify(self, text: str) -> Token:
        """Return what the token says, once its signature, issuer, audience and times hold.

        Raises:
            ProblemError: 401, whatever is wrong with the token.
        """
        if len(text) > MAX_TOKEN_LENGTH:
            raise unauthorized()
        try:
            header = jwt.get_unverified_header(text)
            algorithm, key_id = header.get("alg"), header.get("kid")
            key = await self._keys.key(key_id) if algorithm in ALGORITHMS else None
            if key is None:
                raise unauthorized()
            claims: dict[str, Any] = jwt.decode(
                text,
                key,
                # The token may choose among its key's own algorithms only.
                algorithms=[key.algorithm_name] if key.algorithm_name in ALGORITHMS else [],
                issuer=self._issuer,
                audience=self._audience,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud", self._tenant_claim]},
            )
            scopes = claims.get("scope", "")
            return Token(UUID(claims[self._tenant_claim]), frozenset(scopes.split()))
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError):
            raise unauthorized() from None
