"""What is measured of a server, and how Prometheus gets it."""
