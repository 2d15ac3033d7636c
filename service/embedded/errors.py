"""What can go wrong with the embedded database."""


class EmbeddedError(Exception):
    """The embedded database cannot be had; the text is one line that says what to do."""
