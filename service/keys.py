"""API keys as text: `tny_` and, in base 62, the tenant's id, the key's id, 192 random bits and a checksum.

A key carries its tenant, so that it can be looked up under that tenant's own row-level security. The checksum lets
typos and scanners be answered without a database. Only the SHA-256 of the text is ever stored: with 192 random bits
there is nothing for a slow hash to protect.
"""

import hashlib
import hmac
import secrets
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from uuid import UUID

import base62

PREFIX: Final = "tny_"
_UUID_BYTES: Final = 16
_SECRET_BYTES: Final = 24
_CHECKSUM_BYTES: Final = 4
_BODY_BYTES: Final = 2 * _UUID_BYTES + _SECRET_BYTES
# Leading zero bytes are written as two characters each, so the text is a little longer at most.
_MAX_LENGTH: Final = len(PREFIX) + 96


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A well-formed key; whether it is one that we gave out, only its hash in the database can tell."""

    tenant_id: UUID
    key_id: UUID
    text: str = field(repr=False)

    @property
    def secret_hash(self) -> bytes:
        """The SHA-256 under which the key is stored."""
        return hashlib.sha256(self.text.encode()).digest()

    def matches(self, stored_hash: bytes) -> bool:
        """Compare with a stored hash in constant time."""
        return hmac.compare_digest(self.secret_hash, stored_hash)


def mint(tenant_id: UUID, key_id: UUID) -> ApiKey:
    """Make a key with a fresh secret; its text is shown once and kept nowhere."""
    body = tenant_id.bytes + key_id.bytes + secrets.token_bytes(_SECRET_BYTES)
    return ApiKey(tenant_id, key_id, PREFIX + base62.encodebytes(body + _checksum(body)))


@lru_cache(maxsize=1024)
def parse(text: str) -> ApiKey | None:
    """Read a key's text; None unless it is exactly what `mint` writes.

    What was read is kept, because reading costs more than the rest of a request's authentication: the same text always
    means the same, and whether the key holds is asked elsewhere, every time.
    """
    if not text.startswith(PREFIX) or len(text) > _MAX_LENGTH or not text.isascii():
        return None
    try:
        raw = base62.decodebytes(text.removeprefix(PREFIX))
    except ValueError:
        return None
    body, checksum = raw[:_BODY_BYTES], raw[_BODY_BYTES:]
    if len(raw) != _BODY_BYTES + _CHECKSUM_BYTES or checksum != _checksum(body):
        return None
    if base62.encodebytes(raw) != text.removeprefix(PREFIX):
        return None
    tenant_id, key_id = UUID(bytes=body[:_UUID_BYTES]), UUID(bytes=body[_UUID_BYTES : 2 * _UUID_BYTES])
    return ApiKey(tenant_id, key_id, text)


def _checksum(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "big")
