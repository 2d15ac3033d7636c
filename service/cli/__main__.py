"""`python -m service.cli`: the same as `tenantry`."""

from service.cli import main

main()
