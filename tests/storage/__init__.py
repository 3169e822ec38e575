"""Tests of the storage floor."""
