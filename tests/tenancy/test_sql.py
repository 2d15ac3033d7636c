"""`.sql` files: what is a parameter, what only looks like one, and what is refused while loading."""

from pathlib import Path

import pytest

from tenancy.sql import SqlFileError, Statement, load_file, parse


def _one(body: str) -> Statement:
    return parse(f"-- name: one\n{body}\n", "here.sql")["one"]


def test_parameters_are_compiled_for_each_driver() -> None:
    statement = _one("select :b::int + :a::int, :b::int")
    assert statement.parameters == ("b", "a")
    assert statement.text == "select :b::int + :a::int, :b::int"
    assert statement.pyformat == "select %(b)s::int + %(a)s::int, %(b)s::int"
    assert statement.numbered == "select $1::int + $2::int, $1::int"
    assert statement.arguments({"a": 1, "b": 2, "more": 3}) == [2, 1]
    with pytest.raises(KeyError):
        statement.arguments({"a": 1})


@pytest.mark.parametrize(
    "text",
    [
        "select 'workflow:created'",
        "select 'it''s :not::text one'",
        r"select E'\':not::int'",
        'select 1 as ":not::int"',
        "select $$ :not::int $$",
        "select $tag$ $$ :not::int $tag$",
        "select now()::text::json",
        "select (array[1, 2])[1:2]",
        "select pg_catalog.make_interval(days := 1)",
    ],
)
def test_what_only_looks_like_a_parameter_is_none(text: str) -> None:
    statement = _one(text)
    assert statement.parameters == ()
    assert statement.numbered == statement.text == statement.pyformat == text


def test_comments_are_not_sent() -> None:
    statement = _one("-- why: :this::int\nselect 1 -- and ':that::int\n/* and\n:those::int */ + 2/**/+3")
    assert statement.parameters == ()
    assert "why" not in statement.text
    assert statement.text.split() == ["select", "1", "+", "2", "+3"]


def test_comment_signs_in_literals_stay() -> None:
    assert _one("select '-- not', '/* nor */'").text == "select '-- not', '/* nor */'"


def test_percent_signs_are_doubled_for_psycopg_only() -> None:
    statement = _one("select 'a%', 5 % :n::int")
    assert statement.pyformat == "select 'a%%', 5 %% %(n)s::int"
    assert statement.numbered == "select 'a%', 5 % $1::int"


def test_a_semicolon_at_the_end_is_dropped() -> None:
    assert _one("select 1;\n\n").text == "select 1"


def test_roles_default_to_the_tenants() -> None:
    assert _one("select 1").role == "tenantry_tenant"
    assert _one("-- role: tenantry_scheduler\nselect 1").role == "tenantry_scheduler"


def test_sections_come_by_name_in_order() -> None:
    statements = parse("-- A file.\n\n-- name: first\nselect 1\n-- name: second\nselect 2\n", "here.sql")
    assert list(statements) == ["first", "second"]
    assert len(statements) == 2
    assert statements["second"].source == "here.sql"
    with pytest.raises(KeyError):
        statements["third"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("-- name: a\nselect 1\n-- name: a\nselect 2", "twice"),
        ("select 1", "before the first section"),
        ("", "no section"),
        ("-- nothing but words", "no section"),
        ("-- name: a\n-- only words\n", "empty"),
        ("-- name: a\nselect 1\n-- name: Not Snake\nselect 2", "snake_case"),
        ("-- name: a\nselect :a", "not cast"),
        ("-- name: a\nselect f(:a, :b::int)", ":a is not cast"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(SqlFileError, match=complaint):
        parse(text, "here.sql")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "none.sql")
