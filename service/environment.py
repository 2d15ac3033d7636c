"""Where the text of a setting comes from: its variable, or the file that the variable with `_FILE` behind it names.

Orchestrators mount secrets as files, and a file shows in no listing of processes. A database's password may come by
itself (`DATABASE_PASSWORD` beside `DATABASE_URL`), as it is: within a URL most characters would have to be escaped.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

PREFIX: Final = "TENANTRY_"
FILE: Final = "_FILE"
MAX_FILE_BYTES: Final = 1024 * 1024
_URL: Final = "database_url"
_PASSWORD: Final = "database_password"  # noqa: S105 - the name of a setting


class SettingsError(Exception):
    """A setting is missing or unacceptable; the message is one line that names it. The operator must correct it."""


def read_texts(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the texts of those settings that are given, by lower-case name; nothing, and a file of nothing, is none.

    White space around a text counts in a password only, and not even there at the end of a file's last line.

    Raises:
        SettingsError: a variable and its file are both given, or the file cannot be read.
    """
    texts: dict[str, str] = {}
    for name in names:
        text = _read(environ, name)
        if not name.endswith(_PASSWORD):
            text = text.strip()
        if text:
            texts[name] = text
    return texts


def read_text(environ: Mapping[str, str], name: str) -> str:
    """Return the text of one setting, empty when it is not given.

    Raises:
        SettingsError: as `read_texts`.
    """
    return read_texts(environ, [name]).get(name, "")


def variables_of(name: str) -> frozenset[str]:
    """Return all variables that decide a setting: its own, its file's, and those of a URL's password."""
    names = [name, password_name(name)] if name.endswith(_URL) else [name]
    return frozenset(PREFIX + part.upper() + suffix for part in names for suffix in ("", FILE))


def password_name(url_name: str) -> str:
    """Return the setting that holds the password for a URL: `database_password` for `database_url`."""
    return url_name.removesuffix(_URL) + _PASSWORD


def with_password(url: str, url_name: str, password: str) -> str:
    """Return the database's URL with its password, which may hold any character but NUL.

    Raises:
        SettingsError: the URL has a password already.
    """
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    if ":" in user:
        raise SettingsError(f"{password_name(url_name)}: {url_name} holds a password already, give one of them")
    if "\0" in password:
        raise SettingsError(f"{password_name(url_name)}: must not hold a NUL character")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()


def _read(environ: Mapping[str, str], name: str) -> str:
    variable = PREFIX + name.upper()
    text, path = environ.get(variable, ""), environ.get(variable + FILE, "").strip()
    if not path:
        return text
    if text.strip():
        raise SettingsError(f"{name}: give {variable} or {variable}{FILE}, not both")
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise SettingsError(f"{name}: {variable}{FILE}: {path} is larger than a setting can be")
        return content.decode().rstrip("\r\n")
    except OSError as error:
        raise SettingsError(f"{name}: {variable}{FILE}: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{name}: {variable}{FILE}: {path} is no UTF-8 text") from None
