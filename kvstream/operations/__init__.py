"""What a stream can do: one module for each family of commands."""
