"""The console's own style, script and sign: read once, served under an address that changes with what they hold."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from litestar.response.base import ASGIResponse

from service.console.visits import ROOT, Visit, page
from service.http.routing import RouteSpec
from service.problems import not_found

_TYPES: Final[Mapping[str, str]] = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class Asset:
    """A file and its digest."""

    body: bytes
    digest: str
    media_type: str


def _read(name: str, media_type: str) -> Asset:
    body = files("service.console").joinpath("static", name).read_bytes()
    return Asset(body, hashlib.sha256(body).hexdigest()[:_DIGITS], media_type)


ASSETS: Final[Mapping[str, Asset]] = {name: _read(name, media_type) for name, media_type in _TYPES.items()}


def address(name: str) -> str:
    """Return where a file of ours is to be had for as long as it stays the same."""
    return f"{ROOT}/assets/{ASSETS[name].digest}/{name}"


@page(RouteSpec("GET", f"{ROOT}/assets/{{digest:str}}/{{name:str}}", "A file of the console.", audience="anyone"))
async def serve_asset(visit: Visit) -> ASGIResponse:
    """Answer the file; the address of an older release gets the file of this one, but not to be kept."""
    asset = ASSETS.get(visit.path_text("name"))
    if asset is None:
        raise not_found("There is no such file.")
    is_current = visit.path_text("digest") == asset.digest
    keep = "public, max-age=31536000, immutable" if is_current else "no-store"
    return ASGIResponse(body=asset.body, headers={"Cache-Control": keep}, media_type=asset.media_type)


ROUTES: Final = (serve_asset,)
