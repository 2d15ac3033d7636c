"""Tests of any product's tables: that nobody who is bound to one tenant reaches, changes or learns of another's rows.

An `Isolation` names a schema and a role; `tenancy.isolation.plugin` turns one that stands in a test module into
pytest's tests.
"""

from tenancy.isolation.errors import InconclusiveError, LeakError, NoRowError
from tenancy.isolation.rows import RowFactory
from tenancy.isolation.stage import SITUATIONS, Situation
from tenancy.isolation.suite import Check, Isolation

__all__ = [
    "SITUATIONS",
    "Check",
    "InconclusiveError",
    "Isolation",
    "LeakError",
    "NoRowError",
    "RowFactory",
    "Situation",
]
