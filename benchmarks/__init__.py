"""What things cost on this machine: ratios, measured interleaved in one run. `python -m benchmarks.<name>`."""
