"""What authors write: stages, the workflows built of them, and the registry a process serves."""
