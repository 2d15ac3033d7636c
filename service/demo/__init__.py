"""The demonstration: an invoice import as a workflow, the exports of two tenants, and the command that runs them."""
