"""Settings from variables and from mounted files, and passwords of any character."""

from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.environment import SettingsError, read_text, variables_of, with_password
from service.settings import Settings
from tenancy.pools import sqlalchemy_url

URL = "postgresql://tenantry_api@pooler:6432/tenantry"
NASTY = " a/b?c#d@e:f%41[g]'h\"i\\j k+l&m=n;ü\t€ "


def read(**environment: str) -> Settings:
    return Settings.from_environment({f"TENANTRY_{name}": value for name, value in environment.items()})


def mounted(directory: Path, text: str | bytes) -> str:
    path = directory / "secret"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_any_setting_comes_from_the_file_that_its_file_variable_names(tmp_path: Path) -> None:
    assert read(DATABASE_URL_FILE=mounted(tmp_path, f"{URL}\n")).database_url == URL
    assert read(OPERATOR_TOKEN_FILE=mounted(tmp_path, "hush\r\n")).operator_token == "hush"
    assert read(PORT_FILE=mounted(tmp_path, " 9000 \n")).port == 9000
    assert read_text({"TENANTRY_API_KEY_FILE": mounted(tmp_path, "tny_x\n")}, "api_key") == "tny_x"


def test_a_file_of_nothing_is_no_setting_as_a_variable_of_nothing_is_none(tmp_path: Path) -> None:
    assert read(OPERATOR_TOKEN_FILE=mounted(tmp_path, "\n")).operator_token is None
    assert read(OPERATOR_TOKEN_FILE="", OPERATOR_TOKEN="hush").operator_token == "hush"
    assert read(OPERATOR_TOKEN="", OPERATOR_TOKEN_FILE=mounted(tmp_path, "hush")).operator_token == "hush"


@pytest.mark.parametrize(
    ("name", "content"),
    [("database_url", None), ("operator_token", b"\xff\xfe"), ("database_password", b"x" * 2_000_000)],
)
def test_a_file_that_cannot_be_read_is_one_line_that_names_setting_and_path(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    path = str(tmp_path / "nothing") if content is None else mounted(tmp_path, content)
    with pytest.raises(SettingsError) as refused:
        read(**{f"{name.upper()}_FILE": path})
    assert str(refused.value).startswith(f"{name}: TENANTRY_{name.upper()}_FILE: {path}")
    assert "\n" not in str(refused.value)


def test_a_variable_and_its_file_are_not_both_taken(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^operator_token: .*not both"):
        read(OPERATOR_TOKEN="a", OPERATOR_TOKEN_FILE=mounted(tmp_path, "b"))


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "variable"])
def test_the_database_gets_the_very_password_that_was_given(tmp_path: Path, is_file: bool) -> None:
    given_as = {"DATABASE_PASSWORD_FILE": mounted(tmp_path, NASTY + "\n")} if is_file else {"DATABASE_PASSWORD": NASTY}
    url = read(DATABASE_URL=f"{URL}?sslmode=disable", **given_as).database_url
    assert url is not None
    found = psycopg.conninfo.conninfo_to_dict(url)
    assert found == {
        "user": "tenantry_api", "password": NASTY, "host": "pooler", "port": "6432", "dbname": "tenantry", "sslmode": "disable",
    }  # fmt: skip


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_both_drivers_read_every_password_back(password: str) -> None:
    url = with_password(URL, "database_url", password)
    assert psycopg.conninfo.conninfo_to_dict(url)["password"] == password
    assert sqlalchemy_url(url, "psycopg").password == password


def test_every_url_has_a_password_of_its_own() -> None:
    found = read(
        DATABASE_URL=URL,
        DISPATCHER_DATABASE_URL=URL,
        DIRECT_DATABASE_URL=URL,
        OPERATOR_DATABASE_URL=URL,
        DISPATCHER_DATABASE_PASSWORD="one",
        DIRECT_DATABASE_PASSWORD="two",
        OPERATOR_DATABASE_PASSWORD="three",
    )
    assert found.database_url == URL
    secrets = (found.dispatcher_database_url, found.direct_database_url, found.operator_database_url)
    assert secrets == tuple(URL.replace("@", f":{word}@") for word in ("one", "two", "three"))


def test_a_password_in_two_places_is_refused_and_never_repeated() -> None:
    with pytest.raises(SettingsError) as refused:
        read(DATABASE_URL=URL.replace("@", ":hush@"), DATABASE_PASSWORD="quiet")
    assert str(refused.value).startswith("database_password: ")
    assert "hush" not in str(refused.value)
    assert "quiet" not in str(refused.value)
    with pytest.raises(SettingsError, match=r"^database_password: .*NUL"):
        read(DATABASE_URL=URL, DATABASE_PASSWORD="a\0b")


def test_a_password_that_breaks_its_url_is_told_how_to_be_given() -> None:
    with pytest.raises(SettingsError, match="percent-encoded") as refused:
        read(DATABASE_URL="postgresql://u:hu/sh@host:5432/d")
    assert "sh@" not in str(refused.value)


def test_all_variables_of_a_setting() -> None:
    assert variables_of("port") == {"TENANTRY_PORT", "TENANTRY_PORT_FILE"}
    assert variables_of("direct_database_url") == {
        "TENANTRY_DIRECT_DATABASE_URL", "TENANTRY_DIRECT_DATABASE_URL_FILE",
        "TENANTRY_DIRECT_DATABASE_PASSWORD", "TENANTRY_DIRECT_DATABASE_PASSWORD_FILE",
    }  # fmt: skip
