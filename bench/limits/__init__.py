"""Limits: bounds that kvstream keeps, measured in the same run as the rates."""
