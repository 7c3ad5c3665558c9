"""Where images come from, and who gets which of them. Importing this package imports nothing else."""
