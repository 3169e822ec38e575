"""``top``: watch a server or a store live."""
