"""Workflows: the calls of their functions, and the runs that replay them."""
