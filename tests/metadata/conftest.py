"""Settings of hypothesis for the tests of metadata."""

from hypothesis import settings

# A machine that does other work too may stall any one example.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")
