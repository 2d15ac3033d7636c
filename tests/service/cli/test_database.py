"""`tenantry db`: from an empty database to this build's schema."""

from tests.service.cli.conftest import CommandLine
from tests.support.environment import DatabaseUrls


def test_an_empty_database_is_migrated_and_a_repeat_changes_nothing(
    empty_database_urls: DatabaseUrls, tenantry: CommandLine
) -> None:
    settings = {"DIRECT_DATABASE_URL": empty_database_urls.direct}
    before = tenantry("db", "status", "--json", **settings).json
    assert before["current"] is None
    assert before["pending"] != []
    migrated = tenantry("db", "migrate", "--json", **settings)
    assert migrated.status == 0
    after = tenantry("db", "status", "--json", **settings).json
    assert after == {"current": before["head"], "head": before["head"], "pending": []}
    assert tenantry("db", "migrate", **settings).status == 0
