"""The tests: real Postgres always, no mocks of our own code, no sleeps."""
