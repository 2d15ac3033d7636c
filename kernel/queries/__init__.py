"""Reads: what a tenant may see of its runs, its queue and itself. No query locks or writes anything."""
