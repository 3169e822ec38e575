"""``top``: what a server or a store is doing, live."""
