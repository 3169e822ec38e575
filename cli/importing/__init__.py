"""``import``: append the rows of a file, and resume an import that was killed."""
