"""Measurements behind the figures in docs/benchmarks.md. Run each as `python -m benchmarks.NAME`."""
