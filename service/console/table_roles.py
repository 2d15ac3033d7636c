"""Says of every table of the console in words what it is a table of.

On a phone the rows of tables are blocks, and some browsers take what is no table to look at for none to listen to.
"""

import re
from collections.abc import Mapping
from typing import Final

from jinja2.ext import Extension

_ROLES: Final[Mapping[str, str]] = {
    "table": "table", "thead": "rowgroup", "tbody": "rowgroup", "tfoot": "rowgroup", "tr": "row", "td": "cell",
    'th scope="col"': "columnheader", 'th scope="colgroup"': "columnheader", 'th scope="row"': "rowheader",
    'th scope="rowgroup"': "rowheader",
}  # fmt: skip
_TAG: Final = re.compile(r'<(table|thead|tbody|tfoot|tr|td|th(?: scope="[a-z]+")?)(?![a-z])')


class TableRoles(Extension):
    """Gives each part of a table its role, once, when a template is read."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:  # noqa: ARG002 - its form
        """Return the template with the roles; a `th` says first which scope it has, or is a KeyError."""
        return _TAG.sub(lambda tag: f'<{tag[1]} role="{_ROLES[tag[1]]}"', source)
