"""The pages of the console as JSON, for programs: each page has a form with the fields it has."""
