"""The version of the package, where every floor may ask for it."""

VERSION = "0.1.0"
