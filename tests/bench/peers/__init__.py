"""What others run in the same bench; these scripts run in a Python environment of their own (.venv-bench)."""
