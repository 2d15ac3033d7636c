"""All pages of the console."""

from typing import Final

from litestar.handlers import HTTPRouteHandler

from service.console import (
    actions,
    annotations,
    api_keys,
    assets,
    history,
    overview,
    redrive,
    run,
    runs,
    sign_in,
    stage,
    steps,
    trace,
    usage,
    workers,
    workflows,
)

ROUTES: Final[tuple[HTTPRouteHandler, ...]] = (
    *sign_in.ROUTES,
    *overview.ROUTES,
    *runs.ROUTES,
    *run.ROUTES,
    *history.ROUTES,
    *stage.ROUTES,
    *steps.ROUTES,
    *annotations.ROUTES,
    *trace.ROUTES,
    *redrive.ROUTES,
    *actions.ROUTES,
    *workflows.ROUTES,
    *workers.ROUTES,
    *api_keys.ROUTES,
    *usage.ROUTES,
    *assets.ROUTES,
)
