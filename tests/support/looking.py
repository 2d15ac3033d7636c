"""How a test looks at rows past every policy: `await look("select …", parameter, …)`, as the superuser."""

from collections.abc import Awaitable, Callable
from typing import Any

Look = Callable[..., Awaitable[list[dict[str, Any]]]]
