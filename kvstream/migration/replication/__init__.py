"""Following a live Redis or Valkey: its snapshot, its command stream, and the cut-over."""
