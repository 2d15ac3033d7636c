"""The schema's history: `upgrade` brings a database to `HEAD`, `status` says how far it is."""

from migrations.roles import RolesMissingError
from migrations.runner import HEAD, status, upgrade

__all__ = ["HEAD", "RolesMissingError", "status", "upgrade"]
