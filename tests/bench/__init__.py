"""The promises of performance.md, measured: `python -m tests.bench`, see README.md here."""
