"""A stream as an image: DUMP and RESTORE, COPY and MOVE, and loads in one commit or in steps."""
