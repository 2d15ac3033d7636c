"""Everything that is configured: one frozen object, read from the environment once, checked before anything starts.

Every setting is an environment variable `TENANTRY_<NAME>`, or a file that `TENANTRY_<NAME>_FILE` names; a refusal is
one line that names the setting in lower case.
"""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from kernel import Registry
from kernel.execution.durations import parse_duration
from service.environment import PREFIX, SettingsError, password_name, read_texts, with_password
from tenancy import DatabaseSettings

MIB: Final = 1024 * 1024
SWITCHED_OFF_BY_ZERO: Final = frozenset({"job_absolute_timeout", "retention"})
# Zero is a time like any other here: nothing is waited for.
MAY_BE_NOTHING: Final = SWITCHED_OFF_BY_ZERO | {"abort_grace", "shutdown_grace", "outcome_linger"}
# What a heartbeat costs is one statement a tenant; a third of the threshold leaves room for two that fail.
HEARTBEAT_SHARE: Final = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of every process; each process needs only some of the URLs (`require`).

    `retention` and `job_absolute_timeout` of zero are off. Sizes are bytes.
    """

    database_url: str | None = None
    dispatcher_database_url: str | None = None
    direct_database_url: str | None = None
    operator_database_url: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    workflows: str | None = None
    worker_concurrency: int = 64
    worker_http_port: int | None = None
    stale_lease_threshold: timedelta = timedelta(seconds=300)
    heartbeat_interval: timedelta = timedelta(seconds=30)
    job_absolute_timeout: timedelta = timedelta(hours=1)
    abort_grace: timedelta = timedelta(seconds=10)
    shutdown_grace: timedelta = timedelta(seconds=30)
    poll_interval_min: timedelta = timedelta(milliseconds=20)
    poll_interval_max: timedelta = timedelta(milliseconds=25)
    maintenance_interval: timedelta = timedelta(seconds=10)
    outcome_linger: timedelta = timedelta(milliseconds=10)
    prepared_statements: bool = False
    pool_size: int = 10
    pool_max_lifetime: timedelta = timedelta(hours=1)
    max_payload_bytes: int = 16 * MIB
    retention: timedelta = timedelta(0)
    span_retention: timedelta = timedelta(days=7)
    trace_tenant_header: str | None = None
    trust_traceparent: bool = False
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    jwt_jwks_url: str | None = None
    jwt_tenant_claim: str = "tenant_id"
    operator_token: str | None = None
    log_format: Literal["json", "text"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def __post_init__(self) -> None:
        """Refuse combinations that cannot work.

        Raises:
            SettingsError: names the setting.
        """
        if self.heartbeat_interval * HEARTBEAT_SHARE > self.stale_lease_threshold:
            message = (
                f"heartbeat_interval: {self.heartbeat_interval.total_seconds():g} s is more than a third of "
                f"stale_lease_threshold ({self.stale_lease_threshold.total_seconds():g} s)"
            )
            raise SettingsError(message)
        if self.jwt_jwks_url is not None and (self.jwt_issuer is None or self.jwt_audience is None):
            missing = "jwt_issuer" if self.jwt_issuer is None else "jwt_audience"
            raise SettingsError(f"{missing}: must be set when jwt_jwks_url is")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "Settings":
        """Read the `TENANTRY_` variables of `environ` and the files they name; what holds nothing counts as not set.

        A URL without a password takes the one of its `…DATABASE_PASSWORD`.
        Without an explicit heartbeat interval, a short stale-lease threshold shortens it to the third it may be.

        Raises:
            SettingsError: names the first setting that is unacceptable.
        """
        values: dict[str, Any] = {}
        texts = read_texts(environ, [*_PARSERS, *map(password_name, _URLS)])
        for name, parse in _PARSERS.items():
            if name in texts:
                values[name] = _parse(name, texts[name], parse)
        for name in _URLS:
            if name in values and (password := texts.get(password_name(name))) is not None:
                values[name] = with_password(values[name], name, password)
        if "heartbeat_interval" not in values and "stale_lease_threshold" in values:
            share = values["stale_lease_threshold"] / HEARTBEAT_SHARE
            values["heartbeat_interval"] = min(share, cls().heartbeat_interval)
        return cls(**values)

    def require(self, name: str) -> str:
        """Return the text of a setting that this process cannot do without.

        Raises:
            SettingsError: it is not set.
        """
        value = getattr(self, name)
        if not value:
            raise SettingsError(f"{name}: must be set ({PREFIX}{name.upper()})")
        return str(value)

    def api_database(self) -> DatabaseSettings:
        """Return how the API reaches the database."""
        return self._database("database_url", self.pool_size)

    def operator_database(self) -> DatabaseSettings:
        """Return how the operator's routes reach the database: seldom, so with few connections."""
        return self._database("operator_database_url", 2)

    def _database(self, name: str, pool_size: int) -> DatabaseSettings:
        return DatabaseSettings(
            database_url=self.require(name),
            prepared_statements=self.prepared_statements,
            pool_size=pool_size,
            pool_timeout=5.0,
            connect_timeout=5.0,
            max_lifetime=self.pool_max_lifetime.total_seconds(),
        )


def load_registry(reference: str) -> Registry:
    """Import the `Registry` that `module:attribute` names; the working directory is searched too.

    Raises:
        SettingsError: names `workflows` and says what is wrong, the error of an import that fails included.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise SettingsError(f"workflows: {reference!r} is not of the form module:attribute")
    if (directory := os.getcwd()) not in sys.path and "" not in sys.path:  # noqa: PTH109 - sys.path holds text
        sys.path.insert(0, directory)
    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise SettingsError(f"workflows: {reference} cannot be loaded: {type(error).__name__}: {reason}") from error
    if not isinstance(found, Registry):
        raise SettingsError(f"workflows: {reference} is no kernel.Registry but a {type(found).__name__}")
    return found


def _parse(name: str, text: str, parse: Callable[[str], object]) -> object:
    try:
        value = parse(text)
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from None
    if value == timedelta(0) and name not in MAY_BE_NOTHING:
        raise SettingsError(f"{name}: must be longer than nothing")
    return value


def _duration(text: str) -> timedelta:
    # Steps take numbers as seconds; the environment has only text.
    try:
        seconds = float(text)
    except ValueError:
        return timedelta(seconds=parse_duration(text))
    return timedelta(seconds=parse_duration(seconds))


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise ValueError(f"{text!r} is no whole number from {low} to {high}")
        return int(text)

    return parse


def _switch(text: str) -> bool:
    words = {"on": True, "true": True, "1": True, "yes": True, "off": False, "false": False, "0": False, "no": False}
    try:
        return words[text.lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither on nor off") from None


def _header_name(text: str) -> str:
    if not text.isascii() or not text.replace("-", "").isalnum():
        raise ValueError(f"{text!r} is no name of an HTTP header")
    return text


def _database_url(text: str) -> str:
    # The text is never repeated in the refusal: it may hold a password.
    parts = urlsplit(text)
    if parts.scheme not in {"postgresql", "postgres"}:
        raise ValueError("must look like postgresql://user[:password]@host:port/db, without a driver suffix")
    try:
        complete = bool(parts.hostname and parts.username and parts.path.strip("/") and parts.port != 0)
    except ValueError:
        complete = False
    if not complete:
        raise ValueError(
            "must name user, host, port and database: postgresql://user[:password]@host:port/db"
            " (a password is percent-encoded there, or given as it is by the setting for it)"
        )
    return text


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text.lower()

    return parse


def _web_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{text!r} is no http or https URL")
    return text


_SPECIAL: Final[dict[str, Callable[[str], object]]] = {
    "port": _whole(0, 65535),
    "worker_http_port": _whole(0, 65535),
    "worker_concurrency": _whole(1, 100_000),
    "pool_size": _whole(1, 1000),
    "max_payload_bytes": _whole(1, 1024 * MIB),
    "prepared_statements": _switch,
    "trust_traceparent": _switch,
    "trace_tenant_header": _header_name,
    "jwt_jwks_url": _web_url,
    "log_format": _one_of("json", "text"),
    "log_level": _one_of("debug", "info", "warning", "error"),
}


def _parser(name: str, default: object) -> Callable[[str], object]:
    if name in _SPECIAL:
        return _SPECIAL[name]
    if name.endswith("database_url"):
        return _database_url
    return _duration if isinstance(default, timedelta) else str


_PARSERS: Final = {field.name: _parser(field.name, field.default) for field in fields(Settings)}
_URLS: Final = tuple(name for name in _PARSERS if name.endswith("database_url"))
