"""A live Redis or Valkey as a source: its snapshot, then its command stream, up to the cut-over."""
