"""Faults: real processes, killed and stopped at points that a seed chooses, on a real disk and a real object store."""
