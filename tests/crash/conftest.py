"""Fixtures of the crash tests."""

from tests.faultshim.fixtures import fault_library, faulty_disk

__all__ = ["fault_library", "faulty_disk"]
