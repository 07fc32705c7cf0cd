"""Figures, as ratios within one run: the machines are noisy, the ratios less so."""
