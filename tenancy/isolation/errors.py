"""How a check fails: something leaks, or the check shows nothing.

AssertionError
├── LeakError          a tenant reached, changed or learned of another's rows
├── InconclusiveError  neither shown nor excluded: something else stood in the way
└── NoRowError         no row could be made to check with
"""


class LeakError(AssertionError):
    """The owner of the schema must act: rows are not isolated."""


class InconclusiveError(AssertionError):
    """Whoever configured the suite must act: as it is, the check proves nothing."""


class NoRowError(AssertionError):
    """Whoever configured the suite must act: no row could be made; the text says what to give."""
