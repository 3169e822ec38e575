"""What the store does for queues besides single reads: timers, policies, retention, redrive."""
