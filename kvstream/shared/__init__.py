"""One directory for many processes: one owns the store, the others are its clients."""
