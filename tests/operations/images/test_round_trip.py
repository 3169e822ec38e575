"""A stream loaded from its image behaves as the original.

``KVSTREAM_EXAMPLES=n`` sets the number of runs.
"""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from kvstream import Store
from tests.differential.grammar import Argv
from tests.differential.machines import COMMANDS_8, AgainstKvstream
from tests.operations.images.kept import copy_image

EXAMPLES = int(os.environ.get("KVSTREAM_EXAMPLES", "20"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class ThroughImages(AgainstKvstream):
    """The model against a store whose streams are sometimes replaced by their images."""

    @rule(argv=COMMANDS_8)
    def step(self, argv: Argv) -> None:
        if argv[0] != "XIDMPRECORD":  # an image has no stamp of such an ID
            super().step(argv)

    @rule(key=st.sampled_from(["s", "t", "u"]))
    def put_in_place_of_itself(self, key: str) -> None:
        store = Store(self.store.engine)
        if store.type(key) == "stream":
            assert copy_image(store, key) == []


def test_replacing_a_stream_by_its_image_makes_no_difference() -> None:
    run_state_machine_as_test(ThroughImages, settings=SETTINGS)
