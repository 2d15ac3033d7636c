"""The execution of one stage's body: what it is given, how it is run, and what came of it."""
