"""The program that runs unchanged on every place, on a shared directory."""

from tests.remote import test_one_program

globals().update(
    {name: test for name, test in vars(test_one_program).items() if name.startswith("test_")}
)
