"""The demonstration: an invoice import as a workflow, two tenants' real-looking exports, and the command that runs them."""
