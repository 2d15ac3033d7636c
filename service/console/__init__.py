"""The console: a tenant's runs as pages, on the queries and commands of the public API, behind an API key."""
