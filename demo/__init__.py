"""The demo: consumers on real data, a crash, and proof of the results (``make demo``)."""
