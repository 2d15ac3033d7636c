"""Settings: what is read, what is refused, and that the refusal is one line that names the setting."""

from datetime import timedelta
from pathlib import Path

import pytest

from kernel import Registry
from service.environment import SettingsError
from service.settings import Settings, load_registry


def read(**environment: str) -> Settings:
    return Settings.from_environment({f"TENANTRY_{name}": value for name, value in environment.items()})


def test_defaults_and_every_kind_of_value() -> None:
    assert read() == Settings()
    found = read(
        DATABASE_URL="postgresql://u:p@h:5432/d",
        HOST="0.0.0.0",
        PORT="9000",
        STALE_LEASE_THRESHOLD="6s",
        HEARTBEAT_INTERVAL="2",
        POLL_INTERVAL_MIN="5ms",
        PREPARED_STATEMENTS="on",
        RETENTION="30d",
        JOB_ABSOLUTE_TIMEOUT="0",
        MAX_PAYLOAD_BYTES="1024",
        WORKER_HTTP_PORT="",
        SOMETHING_ELSE="x",
        OUTCOME_LINGER="0",
        ABORT_GRACE="0s",
        SHUTDOWN_GRACE="0",
    )
    assert {found.outcome_linger, found.abort_grace, found.shutdown_grace} == {timedelta(0)}
    assert found.database_url == "postgresql://u:p@h:5432/d"
    assert (found.host, found.port, found.prepared_statements) == ("0.0.0.0", 9000, True)
    assert (found.stale_lease_threshold, found.heartbeat_interval) == (timedelta(seconds=6), timedelta(seconds=2))
    assert (found.poll_interval_min, found.retention) == (timedelta(milliseconds=5), timedelta(days=30))
    assert (found.job_absolute_timeout, found.max_payload_bytes, found.worker_http_port) == (timedelta(0), 1024, None)


def test_a_short_threshold_shortens_the_heartbeat_that_was_not_given() -> None:
    assert read(STALE_LEASE_THRESHOLD="6s").heartbeat_interval == timedelta(seconds=2)
    assert read(STALE_LEASE_THRESHOLD="1h").heartbeat_interval == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "mysql://u@h/d"), ("DATABASE_URL", "postgresql+asyncpg://u@h:1/d"), ("DATABASE_URL", "postgresql://h:5432/d"),
        ("DATABASE_URL", "postgresql://u@h:x/d"), ("DATABASE_URL", "postgresql://u@h:5432"), ("OPERATOR_DATABASE_URL", "x"),
        ("PORT", "x"), ("PORT", "-1"), ("PORT", "65536"), ("PORT", "8_0"), ("WORKER_CONCURRENCY", "0"), ("MAX_PAYLOAD_BYTES", "1.5"),
        ("STALE_LEASE_THRESHOLD", "soon"), ("STALE_LEASE_THRESHOLD", "-1"), ("STALE_LEASE_THRESHOLD", "nan"), ("STALE_LEASE_THRESHOLD", "0"),
        ("ABORT_GRACE", "42m30s"), ("SHUTDOWN_GRACE", "inf"), ("HEARTBEAT_INTERVAL", "101s"), ("PREPARED_STATEMENTS", "maybe"),
        ("JWT_JWKS_URL", "ftp://x"), ("RETENTION", "x"), ("RETENTION", "9" * 400),
        ("LOG_FORMAT", "xml"), ("LOG_LEVEL", "loud"), ("POOL_MAX_LIFETIME", "0"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_line_that_names_the_setting(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read(**{name: value})
    text = str(refused.value)
    assert text.startswith(f"{name.lower()}: ")
    assert "\n" not in text


def test_a_heartbeat_longer_than_a_third_of_the_threshold_is_refused() -> None:
    with pytest.raises(SettingsError, match="heartbeat_interval"):
        read(STALE_LEASE_THRESHOLD="6s", HEARTBEAT_INTERVAL="2.1")
    with pytest.raises(SettingsError, match="heartbeat_interval"):
        read(HEARTBEAT_INTERVAL="2m")


def test_tokens_need_issuer_and_audience() -> None:
    with pytest.raises(SettingsError, match="jwt_issuer"):
        read(JWT_JWKS_URL="https://x/keys")
    with pytest.raises(SettingsError, match="jwt_audience"):
        read(JWT_JWKS_URL="https://x/keys", JWT_ISSUER="x")


def test_a_password_is_never_repeated() -> None:
    with pytest.raises(SettingsError) as refused:
        read(DATABASE_URL="postgresql://user:hush@host:port/db")
    assert "hush" not in str(refused.value)


def test_what_a_process_needs_is_asked_for_by_name() -> None:
    with pytest.raises(SettingsError, match="dispatcher_database_url"):
        Settings().require("dispatcher_database_url")


def test_a_registry_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up_flows.py").write_text(
        "from kernel import Registry\nclass held: registry = Registry([])\nother = 1\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere", *__import__("sys").path])
    assert isinstance(load_registry("made_up_flows:held.registry"), Registry)
    for reference in (
        "made_up_flows",
        ":x",
        "made_up_flows:",
        "made_up_flows:nothing",
        "made_up_flows:other",
        "no_such_module:x",
    ):
        with pytest.raises(SettingsError) as refused:
            load_registry(reference)
        assert str(refused.value).startswith("workflows: ")
        assert "\n" not in str(refused.value)
