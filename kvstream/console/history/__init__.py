"""Figures over time: samples that the console keeps in the store, and the plots of them."""
