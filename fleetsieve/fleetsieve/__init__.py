"""Decides how to split a GPU budget over LLM workloads, with the fewest benchmarks."""
