"""The templates of the console: everything is escaped, and a name that is missing is an error."""

from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar.plugins.jinja import JinjaTemplateEngine
from litestar.template import TemplateConfig

from kernel.events import EventType
from service.console.assets import address
from service.console.table_roles import TableRoles
from service.console.words import FILTERS


def template_config() -> TemplateConfig[JinjaTemplateEngine]:
    """Return what an application renders the console's pages with."""
    environment = Environment(
        loader=PackageLoader("service.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        extensions=[TableRoles],
    )
    environment.filters.update(FILTERS)
    environment.globals.update(asset=address, known_events=frozenset(EventType))
    return TemplateConfig(instance=JinjaTemplateEngine.from_environment(environment))
