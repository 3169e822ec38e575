"""The history of workflows: its events, the streams that hold them, and the ends of children."""
