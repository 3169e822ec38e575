"""The logins of a console that is served alone: by a URL, a password, or a proxy."""
