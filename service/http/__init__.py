"""The HTTP API: one module a resource, each route a function of a `Call`."""
